"""Tiny models with random weights: enough of an architecture to hold it against llama.cpp."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from bench.model_file import add_metadata
from engine.tokenizer.chat_template import FALLBACK

N_CTX = 1024
N_LETTERS = 53  # the last tokens: a space, and each letter with and without one before it


def _tokenizer() -> dict[str, object]:
    """Return the metadata of an SPM tokenizer that knows bytes and letters, and the control tokens of a chat."""
    control = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    letters = [f"{space}{chr(letter)}" for space in ("", "▁") for letter in range(ord("a"), ord("z") + 1)]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", *control, *byte_tokens, "▁", *letters]
    kinds = [2, *[3] * len(control), *[6] * 256, *[1] * (1 + len(letters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": True,
    }


TOKENIZER = _tokenizer()
N_VOCAB = sum(1 for _ in TOKENIZER["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]


class TinyModel:
    """The metadata and tensors of a model in the making.

    Weights are drawn so that activations keep their size: matrices from N(0, 1 / n_in), norms around 1.
    """

    def __init__(self, architecture: str, *, n_layer: int, n_embd: int, metadata: Mapping[str, object]) -> None:
        self.architecture = architecture
        self.n_layer, self.n_embd = n_layer, n_embd
        self.metadata = {"block_count": n_layer, "context_length": N_CTX, "embedding_length": n_embd, **metadata}
        self.tensors: dict[str, tuple[NDArray[np.float32], GGMLQuantizationType]] = {}
        self._random = np.random.default_rng(len(architecture))

    def matrix(self, name: str, *shape: int, kind: GGMLQuantizationType = GGMLQuantizationType.F32) -> None:
        """Add `name`.weight of a shape (…, n_out, n_in)."""
        self.add(f"{name}.weight", self._random.standard_normal(shape) * shape[-1] ** -0.5, kind)

    def norm(self, *names: str, n: int | None = None) -> None:
        """Add the weights of norms, of n_embd values unless told otherwise."""
        for name in names:
            self.add(f"{name}.weight", 1 + 0.2 * self._random.standard_normal(n or self.n_embd))

    def bias(self, name: str, *shape: int) -> None:
        """Add `name`.bias."""
        self.add(f"{name}.bias", 0.3 * self._random.standard_normal(shape))

    def uniform(self, name: str, *shape: int, low: float, high: float) -> None:
        """Add a tensor of evenly distributed values."""
        self.add(name, self._random.uniform(low, high, shape))

    def embeddings(self, *, tied: bool) -> None:
        """Add the embeddings, the last norm and, unless it is tied to them, the output: logits from N(0, 9)."""
        self.add("token_embd.weight", self._random.standard_normal((N_VOCAB, self.n_embd)) * self._logit_scale)
        self.norm("output_norm")
        if not tied:
            self._output()

    def _output(self) -> None:
        self.add("output.weight", self._random.standard_normal((N_VOCAB, self.n_embd)) * self._logit_scale)

    @property
    def _logit_scale(self) -> float:
        return 3 * self.n_embd**-0.5

    def add(
        self, name: str, values: NDArray[np.float64], kind: GGMLQuantizationType = GGMLQuantizationType.F32
    ) -> None:
        """Add a tensor."""
        self.tensors[name] = values.astype(np.float32), kind

    def never_ending(self, *, n_ctx: int = N_CTX) -> Self:
        """Have the likeliest token always be a letter: the logits of 53 of them are random, those of the others 0.

        So the output is not the embeddings, or every token would say itself again.
        """
        self.metadata["context_length"] = n_ctx
        self._output()
        self.tensors["output.weight"][0][:-N_LETTERS] = 0
        return self

    def write(self, path: Path, *, template: str = FALLBACK) -> Path:
        """Write the file; return its path. The chat template is our own by default, which needs no process."""
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            add_metadata(writer, f"{self.architecture}.{key}", value)
        for key, value in (TOKENIZER | {"tokenizer.chat_template": template}).items():
            add_metadata(writer, key, value)
        for name, (values, kind) in self.tensors.items():
            data = values if kind == GGMLQuantizationType.F32 else quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path
