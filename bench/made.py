"""Models that are made for a measurement: copies in another tensor type, and random weights in a known shape.

How fast a model is depends on its shape and on the type of its weights, not on what they are.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, TokenType

from bench.model_file import dequantized, write_model
from bench.shapes import SHAPES, Shape
from engine.arrays import F32
from engine.cli.terminal import StatusLine
from engine.formats.gguf import open_gguf

TYPES = {
    kind.name.lower(): kind
    for kind in (
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q5_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.F32,
    )
}
"""Tensor types that can be written, by the names of `--type`."""
DEFAULT_TYPE = "q8_0"


def with_model(arguments: argparse.Namespace, folder: Path) -> argparse.Namespace:
    """Return the arguments of a benchmark with the file that is measured as `model` and what it is as `name`.

    A file that has to be made first lies in `folder`. Raises DormouseError if it can't be made.
    """
    changes: dict[str, object] = {"name": str(arguments.model)}
    if arguments.shape is not None or arguments.type is not None:
        type_name = arguments.type or DEFAULT_TYPE
        path, tensor_type = folder / f"{type_name}.gguf", TYPES[type_name]
        status = StatusLine()
        status.show("making the model")
        # in a process of its own: what this one measures must not include the memory that making it takes
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            if arguments.shape is None:
                pool.submit(write_copy, arguments.model, path, tensor_type).result()
            else:
                pool.submit(write_random, SHAPES[arguments.shape], path, tensor_type).result()
        status.clear()
        name = f"{arguments.model or f'{arguments.shape} with random weights'} as {type_name}"
        changes = {"model": path, "name": name}
    if arguments.shape is not None:
        changes |= {"no_kl": True, "no_gap": True}  # there is no text that such a model could read
    return argparse.Namespace(**vars(arguments) | changes)


def write_copy(source: Path, target: Path, tensor_type: GGMLQuantizationType) -> None:
    """Write a copy of a model with all matrices in `tensor_type`. Raises DormouseError."""
    with open_gguf(source) as original:
        write_model(target, original.metadata, dequantized(original), tensor_type)


def write_random(shape: Shape, target: Path, tensor_type: GGMLQuantizationType) -> None:
    """Write a model of a shape with random weights, and tokens that are as many but mean nothing."""
    metadata = {f"{shape.architecture}.{key}": value for key, value in shape.metadata.items()}
    metadata |= {"general.architecture": shape.architecture} | _tokenizer(shape.n_vocab)
    write_model(target, metadata, _random_weights(shape), tensor_type)


def _random_weights(shape: Shape) -> Iterator[tuple[str, F32]]:
    """Yield weights that keep the size of activations: norms of 1, decay, and all else from -a to a."""
    random = np.random.default_rng(0)
    for name, dimensions in shape.tensors.items():
        if "norm" in name:
            weights = np.ones(dimensions, np.float32)
        elif name.endswith("ssm_a"):
            weights = -random.uniform(0.1, 1, dimensions).astype(np.float32)
        else:
            weights = random.random(dimensions, np.float32)
            weights -= 0.5
            weights *= (12 / dimensions[-1]) ** 0.5
        yield name, weights


def _tokenizer(n_vocab: int) -> dict[str, object]:
    """Return the metadata of an SPM tokenizer with its special tokens, all bytes, and words that no text holds."""
    special = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"<word {i}>" for i in range(n_vocab - len(special) - len(byte_tokens))]
    types = [*special.values(), *[TokenType.BYTE] * len(byte_tokens), *[TokenType.NORMAL] * len(words)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*special, *byte_tokens, *words],
        "tokenizer.ggml.scores": [-float(i) for i in range(n_vocab)],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
    }
