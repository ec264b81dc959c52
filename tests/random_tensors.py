"""Tensors of every type, without a file."""

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.quants import BLOCK_FORMATS
from engine.quants.matrix import Tensor

FLOATS = ("F32", "F16", "BF16")
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
"""Where the float16 scales of a block are."""


def random_tensor(tensor_type: GGMLQuantizationType, n_out: int, n_in: int, *, seed: int = 0) -> Tensor:
    """Return any blocks whose weights are of a model's order of magnitude."""
    random = np.random.default_rng(seed)
    if tensor_type.name in FLOATS:
        weights = random.standard_normal((n_out, n_in), np.float32)
        data = {
            "F32": weights,
            "F16": weights.astype(np.float16),
            "BF16": (weights.view(np.uint32) >> 16).astype(np.uint16),
        }
        return _tensor(tensor_type, (n_out, n_in), data[tensor_type.name])
    block_format = BLOCK_FORMATS[tensor_type]
    shape = n_out * n_in // block_format.block_size, block_format.block_bytes
    blocks = random.integers(0, 256, shape, dtype=np.uint8)
    for offset in HALVES.get(tensor_type.name, []):
        scales = (random.standard_normal((len(blocks), 1)) / 64).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    if tensor_type.name == "MXFP4":
        blocks[:, 0] = random.integers(118, 124, len(blocks))
    return _tensor(tensor_type, (n_out, n_in), blocks)


def uniform_tensor(tensor_type: GGMLQuantizationType, n_out: int, n_in: int, *, byte: int, scale: float) -> Tensor:
    """Return a quantized tensor whose blocks are full of one byte, but for the float16 scales."""
    block_format = BLOCK_FORMATS[tensor_type]
    blocks = np.full((n_out * n_in // block_format.block_size, block_format.block_bytes), byte, np.uint8)
    for offset in HALVES.get(tensor_type.name, []):
        blocks[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
    if tensor_type.name == "MXFP4":
        blocks[:, 0] = 128
    return _tensor(tensor_type, (n_out, n_in), blocks)


def _tensor(tensor_type: GGMLQuantizationType, shape: tuple[int, int], array: NDArray[np.generic]) -> Tensor:
    return Tensor(tensor_type, shape, array.reshape(-1).view(np.uint8))


def weights_of(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor's weights, shape (n_out, n_in)."""
    block_format = BLOCK_FORMATS[tensor.type]
    return block_format.decode(tensor.data.reshape(-1, block_format.block_bytes)).reshape(tensor.shape)
