"""Model files that somebody made wrong: tiny models, of which each mutation changes what one or two places say.

A mutation is known by its number, which decides on all of it. The models have no chat templates: these are
programs, and run in a process of their own.
"""

from __future__ import annotations

import contextlib
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, Keys
from tokenizers.pre_tokenizers import ByteLevel

from engine.formats.gguf import open_gguf
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import N_VOCAB, TinyModel

MODELS: dict[str, Callable[[], TinyModel]] = {
    **full_attention.MODELS,
    **windowed.MODELS,
    **recurrent.MODELS,
    "gpt-oss, MXFP4": partial(windowed.gpt_oss, GGMLQuantizationType.MXFP4),
}
ALIGNMENT = 32

INTEGERS = (0, 1, 2, 3, 5, 31, 33, 255, 4096, 65536, 2**24, 2**31 - 1, 2**31, 2**32, 2**62, 2**64 - 1, -1, -2, -(2**63))
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e-45, 1e-20, 3e38, 0.5)
TEXTS = ("", "none", "yarn", "longrope", "llama", "gpt2", "rwkv", "gemma4", "\n", "x" * 100_000)
ARRAYS = (
    np.zeros(0, np.int32),
    np.zeros(0, np.float32),
    np.array([True]),
    np.array([-1, 2**31 - 1], np.int64),
    np.array([math.nan], np.float32),
    np.array([2**64 - 1], np.uint64),
)
FILLING = np.random.default_rng(0).standard_normal(997).astype(np.float32) / 8
DTYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


def _vocabularies() -> dict[str, dict[str, Any]]:
    """Return the metadata of a small vocabulary of each kind, all of as many tokens."""
    control = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    n_more = N_VOCAB - 256 - len(control)
    pairs = [f"{a} {b}" for a in "etaoinsh" for b in "etaoinsh"][:n_more]
    bpe = {
        "tokenizer.ggml.tokens": [*control, *sorted(ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in pairs)],
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.token_type": np.array([3] * len(control) + [1] * (N_VOCAB - len(control)), np.int32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    escapes = [f"\\x{byte:02x}" for byte in range(256)]
    rwkv = bpe | {"tokenizer.ggml.tokens": [*control, *escapes, *(f"t{i}" for i in range(n_more))]}
    del rwkv["tokenizer.ggml.merges"]
    return {
        "llama": {},
        "gpt2": bpe | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"},
        "gemma4": bpe | {"tokenizer.ggml.model": "gemma4"},
        "rwkv": rwkv | {"tokenizer.ggml.model": "rwkv"},
    }


VOCABULARIES = _vocabularies()


@dataclass
class Tensor:
    """An entry of the table of tensors; `dimensions` in the file's order."""

    name: str
    dimensions: list[int]
    type: int
    offset: int


@dataclass
class Draft:
    """A model file that may say what it likes."""

    metadata: dict[str, Any]
    tensors: list[Tensor]
    data: bytearray

    @classmethod
    def read(cls, path: Path) -> Draft:
        """Take a file apart."""
        with open_gguf(path) as file:
            start = min(info.offset for info in file.tensors.values())
            tensors = [Tensor(t.name, list(t.shape[::-1]), t.type, t.offset - start) for t in file.tensors.values()]
            metadata = {key: value for key, value in file.metadata.items() if key != Keys.Tokenizer.CHAT_TEMPLATE}
            return cls(metadata, tensors, bytearray(path.read_bytes()[start:]))

    def reshape(self, name: str, shape: Sequence[int]) -> None:
        """Give a tensor, and those of its name in other blocks, another shape and floats to fill it."""
        of_all = re.compile(re.sub(r"blk\\.\d+", r"blk\.\\d+", re.escape(name)))
        before = next(tensor.dimensions for tensor in self.tensors if tensor.name == name)
        for tensor in self.tensors:
            if of_all.fullmatch(tensor.name) and tensor.dimensions == before:
                tensor.dimensions, tensor.type = list(shape[::-1]), GGMLQuantizationType.F32
                self.data += bytes(-len(self.data) % ALIGNMENT)
                tensor.offset = len(self.data)
                self.data += np.resize(FILLING, math.prod(shape)).tobytes()

    def encode(self) -> bytes:
        """Return the file."""
        parts = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))]
        for key, value in self.metadata.items():
            parts += [_text(key), _value(value)]
        for tensor in self.tensors:
            n = len(tensor.dimensions)
            parts += [_text(tensor.name), struct.pack(f"<I{n}Q", n, *tensor.dimensions)]
            parts.append(struct.pack("<IQ", tensor.type, tensor.offset))
        header = b"".join(parts)
        return header + bytes(-len(header) % ALIGNMENT) + self.data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            types = ((4, "I"), (5, "i"), (10, "Q"), (11, "q"))
            for type_id, letter in types:
                with contextlib.suppress(struct.error):
                    return struct.pack(f"<I{letter}", type_id, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case np.ndarray():
            return struct.pack("<IIQ", 9, DTYPES[value.dtype.str[1:]], len(value)) + value.tobytes()
    raise TypeError(value)


class Mutation:
    """One way to make a model file wrong, or just another one."""

    def __init__(self, number: int) -> None:
        self._random = np.random.default_rng(number)
        self.model = self._one_of(sorted(MODELS))
        self._vocabulary = self._one_of(("llama", "llama", *VOCABULARIES))
        self._told: list[str] = []

    def apply(self, draft: Draft) -> str:
        """Change a model; return what was done to it."""
        if vocabulary := VOCABULARIES[self._vocabulary]:
            others = {key: value for key, value in draft.metadata.items() if not key.startswith("tokenizer.")}
            draft.metadata = others | vocabulary
        for _ in range(self._one_of((1, 1, 1, 2))):
            self._one_of((self._metadata, self._metadata, self._metadata, self._tensor, self._weights))(draft)
        return f"{self.model} ({self._vocabulary}): {'; '.join(self._told)}"

    def _one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self._random.integers(len(choices))]

    def _metadata(self, draft: Draft) -> None:
        key = self._one_of(list(draft.metadata))
        before = draft.metadata[key]
        kind = self._one_of(("removed", "other", "other", "near", "near", "near"))
        if kind == "removed":
            del draft.metadata[key]
            self._told.append(f"without {key}")
            return
        value = self._near(before) if kind == "near" else self._other()
        draft.metadata[key] = value
        self._told.append(f"{key} = {_shown(value)} (was {_shown(before)})")

    def _other(self) -> Any:
        """Return a value of any kind."""
        return self._one_of(self._one_of((INTEGERS, FLOATS, TEXTS, ARRAYS, (True, False), ([], ["a"], ["a", "a"]))))

    def _near(self, value: Any) -> Any:
        """Return a value of the same kind."""
        match value:
            case bool():
                return not value
            case int():
                near = (value + 1, value - 1, 2 * value, value // 2, 4 * value)
                return self._one_of(self._one_of((INTEGERS, near)))
            case float():
                return self._one_of(self._one_of((FLOATS, (-value, 2 * value, value / 1000))))
            case str():
                return self._one_of((*TEXTS, value + "x", value[:-1]))
        n = len(value)
        shape = self._one_of(("shorter", "longer", "empty", "item", "item", "item", "reversed"))
        if shape in ("shorter", "empty") or not n:
            return value[: 0 if shape == "empty" else n - 1]
        if shape == "reversed":
            return value[::-1]
        if isinstance(value, list):
            if shape == "longer":
                return [*value, f"{value[-1]}x"]
            out = value.copy()
            out[self._random.integers(n)] = self._one_of((*TEXTS, value[0], "a b c", " ", "<0xZZ>"))
            return out
        if shape == "longer":
            return np.concatenate([value, value[-1:]])
        out = value.copy()
        if value.dtype.kind == "f":
            out[self._random.integers(n)] = self._one_of(FLOATS)
        else:
            fitting = [
                i for i in INTEGERS if value.dtype.kind == "b" or np.can_cast(np.min_scalar_type(i), value.dtype)
            ]
            out[self._random.integers(n)] = self._one_of(fitting)
        return out

    def _tensor(self, draft: Draft) -> None:
        tensor, other = self._one_of(draft.tensors), self._one_of(draft.tensors)
        before = f"{tensor.name} {tensor.dimensions} {tensor.type} {tensor.offset}"
        match self._one_of(("name", "dimensions", "dimensions", "type", "offset", "removed")):
            case "name":
                tensor.name = self._one_of((other.name, f"{tensor.name}x", "", "output.weight", "rope_freqs.weight"))
            case "dimensions":
                self._dimensions(tensor.dimensions)
            case "type":
                tensor.type = self._one_of((*GGMLQuantizationType, 99))
            case "offset":
                near = (0, other.offset, tensor.offset + ALIGNMENT, tensor.offset + 1)
                tensor.offset = self._one_of((*near, len(draft.data), 2**40, 2**63, 2**64 - ALIGNMENT))
            case _:
                draft.tensors.remove(tensor)
        self._told.append(f"{before} -> {tensor.name[:40]} {tensor.dimensions} {tensor.type} {tensor.offset}")

    def _dimensions(self, dimensions: list[int]) -> None:
        place = self._random.integers(len(dimensions)) if dimensions else 0
        match self._one_of(("size", "size", "more", "fewer", "turned")):
            case "size" if dimensions:
                near = (dimensions[place] + 1, dimensions[place] - 1, 2 * dimensions[place], dimensions[place] // 2)
                dimensions[place] = self._one_of((*near, 0, 1, 2**31, 2**62, 2**64 - 1))
            case "more":
                dimensions.insert(place, self._one_of((1, 1, 2, 0)))
            case "fewer" if dimensions:
                del dimensions[place]
            case _:
                dimensions.reverse()

    def _weights(self, draft: Draft) -> None:
        """Write other weights over a part of the data, or end it early."""
        start = int(self._random.integers(len(draft.data))) // 4 * 4
        value = self._one_of((math.nan, math.inf, 3e38, -3e38, 0.0, None))
        if value is None:
            del draft.data[start:]
            self._told.append(f"cut at {start}")
            return
        stop = min(len(draft.data), start + 4 * int(self._random.integers(1, 5000)))
        draft.data[start:stop] = struct.pack("<f", value) * ((stop - start) // 4)
        self._told.append(f"bytes {start} to {stop} say {value}")


def _shown(value: Any) -> str:
    return (text := repr(value).replace("\n", ""))[:60] + ("…" if len(text) > 60 else "")
