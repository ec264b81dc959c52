"""Copies of real model files with other tensors: dequantized, requantized or changed."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from bench.model_file import dequantized, write_model
from engine.formats.gguf import open_gguf

Change = Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
"""Called with the name and the weights of a tensor."""


def write_copy(
    source: Path,
    target: Path,
    *,
    tensor_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    change: Change = lambda name, weights: weights,
) -> Path:
    """Write a copy with all matrices in `tensor_type` (vectors in F32), after `change`; return its path."""
    with open_gguf(source) as original:
        tensors = ((name, change(name, weights)) for name, weights in dequantized(original))
        write_model(target, original.metadata, tensors, tensor_type)
    return target
