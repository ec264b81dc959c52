"""Dequantize whole tensors."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.errors import UnsupportedError
from engine.kernels.team import ThreadTeam
from engine.quants.blocks import BLOCK_FORMATS, BlockFormat, Blocks, TensorData, Weights

_PIECE_BLOCKS = 1 << 15  # what is read at once: some megabytes at most
_CHUNK_WEIGHTS = 1 << 16  # what one task converts: its intermediate arrays stay in the second-level cache


def dequantize(
    data: TensorData, tensor_type: GGMLQuantizationType, shape: tuple[int, ...], *, team: ThreadTeam
) -> NDArray[np.float32]:
    """Return the tensor as float32 of `shape`.

    `data` holds the tensor's bytes as in the file, shape (n_bytes,). Raises UnsupportedError for a tensor
    type without a block format.
    """
    if tensor_type not in BLOCK_FORMATS:
        raise UnsupportedError(f"tensor type {tensor_type.name} is not supported")
    block_format = BLOCK_FORMATS[tensor_type]
    size = block_format.block_bytes
    weights = np.empty((len(data) // size, block_format.block_size), np.float32)
    for first in range(0, len(weights), _PIECE_BLOCKS):
        piece = data[first * size : (first + _PIECE_BLOCKS) * size].reshape(-1, size)
        _decode(piece, block_format, weights[first:], team)
    return weights.reshape(shape)


def _decode(blocks: Blocks, block_format: type[BlockFormat], weights: Weights, team: ThreadTeam) -> None:
    """Write the weights of blocks to the first ones of (n_blocks, block_size)."""
    step = max(1, _CHUNK_WEIGHTS // block_format.block_size)

    def convert(chunk: int) -> None:
        part = slice(chunk * step, (chunk + 1) * step)
        with np.errstate(invalid="ignore", over="ignore"):  # a scale that is not finite is the file's own affair
            decoded = block_format.decode(blocks[part])
        weights[part][: len(decoded)] = decoded

    team.run(-(-len(blocks) // step), convert)
