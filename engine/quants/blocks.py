"""The block formats of GGUF tensor types: how the bytes of one block become weights.

Layouts as in llama.cpp's `ggml-common.h`. Each format is a small class that knows only its own
conversion; writing the class registers it in `BLOCK_FORMATS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]  # (n_blocks, block_bytes)
Weights = NDArray[np.float32]  # (n_blocks, block_size)

BLOCK_FORMATS: dict[GGMLQuantizationType, type[BlockFormat]] = {}


class BlockFormat(ABC):
    """One tensor type: `block_size` weights in `block_bytes` bytes."""

    type: ClassVar[GGMLQuantizationType]
    block_size: ClassVar[int]
    block_bytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.type = GGMLQuantizationType[cls.__name__]
        cls.block_size, cls.block_bytes = GGML_QUANT_SIZES[cls.type]
        BLOCK_FORMATS[cls.type] = cls

    @staticmethod
    @abstractmethod
    def decode(blocks: Blocks) -> Weights:
        """Return the weights of `blocks`, exact in float32."""


def _half(blocks: Blocks, offset: int) -> NDArray[np.float32]:
    """Return the float16 at byte `offset` of each block, shape (n_blocks, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Blocks) -> NDArray[np.uint8]:
    """Unpack (…, n) bytes to (…, 2 n) values: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _high_bits(blocks: Blocks, offset: int) -> NDArray[np.uint8]:
    """Return the 32 bits at byte `offset` of each block as the values 0 and 16, shape (n_blocks, 32)."""
    return np.unpackbits(blocks[:, offset : offset + 4], axis=-1, bitorder="little") << np.uint8(4)


class F32(BlockFormat):  # noqa: D101 - the name says it, as in the classes below
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        return blocks.view(np.float32)


class F16(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        return blocks.view(np.float16).astype(np.float32)


class BF16(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


class Q4_0(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        quants = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
        return quants.astype(np.float32) * _half(blocks, 0)


class Q4_1(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


class Q5_0(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        quants = (_nibbles(blocks[:, 6:]) | _high_bits(blocks, 2)).view(np.int8) - np.int8(16)
        return quants.astype(np.float32) * _half(blocks, 0)


class Q5_1(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        quants = _nibbles(blocks[:, 8:]) | _high_bits(blocks, 4)
        return quants.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


class Q8_0(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


class Q4_K(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        # Eight 6-bit scales and eight 6-bit minima share 12 bytes: the first four of each lie whole in bytes
        # 0-3 and 4-7; the low halves of the others in bytes 8-11, their top bits above the first four.
        low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
        scales = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 6) << 4)], axis=-1)
        minima = np.concatenate([middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
        d = _half(blocks, 0) * scales.astype(np.float32)  # (n_blocks, 8)
        m = _half(blocks, 2) * minima.astype(np.float32)
        quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
        return (quants.astype(np.float32) * d[:, :, None] - m[:, :, None]).reshape(-1, 256)


class Q6_K(BlockFormat):  # noqa: D101
    @staticmethod
    def decode(blocks: Blocks) -> Weights:
        low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))  # (n_blocks, 2, 128)
        top = blocks[:, 128:192].reshape(-1, 2, 1, 32)  # 2 bits each for the four runs of 32
        top = (top >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & np.uint8(3)
        quants = (low.reshape(-1, 2, 4, 32) | (top << np.uint8(4))).view(np.int8) - np.int8(32)
        scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)  # (n_blocks, 16)
        return (quants.reshape(-1, 16, 16).astype(np.float32) * scales[:, :, None]).reshape(-1, 256)
