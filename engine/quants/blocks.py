"""The block formats of GGUF tensor types: how the bytes of one block become weights.

Layouts as in llama.cpp's `ggml-common.h`. Each format is a small class that knows only how its own bytes are taken
apart; writing the class registers it in `BLOCK_FORMATS`. Here are the plain types and those of one scale per 32
weights; the others are in `k_blocks.py` and `table_blocks.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from engine.kernels.layout import Layout


class TensorData(Protocol):
    """The bytes of a tensor, as an array or as what reads them from a file.

    They are asked for once, from the first to the last; what came of one slice is good until the next one.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]: ...


Blocks = NDArray[np.uint8]  # (n_blocks, block_bytes)
Weights = NDArray[np.float32]  # (n_blocks, block_size)

BLOCK_FORMATS: dict[GGMLQuantizationType, type[BlockFormat]] = {}


class BlockFormat(ABC):
    """One tensor type: `block_size` weights in `block_bytes` bytes."""

    type: ClassVar[GGMLQuantizationType]
    block_size: ClassVar[int]
    block_bytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        if cls.__name__ in GGMLQuantizationType.__members__:
            cls.type = GGMLQuantizationType[cls.__name__]
            cls.block_size, cls.block_bytes = GGML_QUANT_SIZES[cls.type]
            BLOCK_FORMATS[cls.type] = cls

    @classmethod
    @abstractmethod
    def decode(cls, blocks: Blocks) -> Weights:
        """Return the weights of `blocks`, exact in float32."""


@dataclass(frozen=True)
class Parts:
    """Quantized blocks taken apart; what the parts mean is told by a `Layout`."""

    values: NDArray[Any]  # uint8, or int8 where they are signed, (n_blocks, block_size)
    scales: NDArray[Any]  # float16, int8 or uint8, (n_blocks, n_runs)
    minima: NDArray[Any] | None = None  # the same, unless they share bytes with the scales
    head: NDArray[np.float16] | None = None  # (n_blocks, 1), or 2 with a factor of the minima


class QuantizedFormat(BlockFormat):
    """A tensor type of small integers with scales."""

    layout: ClassVar[Layout]

    @staticmethod
    @abstractmethod
    def split(blocks: Blocks) -> Parts:
        """Take blocks apart."""

    @classmethod
    def decode(cls, blocks: Blocks) -> Weights:
        layout, parts = cls.layout, cls.split(blocks)
        n_runs = parts.scales.shape[1]
        values = parts.values.reshape(len(blocks), n_runs, -1)
        scales, minima = _numbers(layout, parts)
        if layout.table is not None:
            weights = np.array(layout.table, np.float32)[values]
        else:
            weights = values.astype(np.float32) - np.float32(layout.zero_point)
        weights = weights * scales[:, :, None]
        if minima is not None:
            weights = weights + minima[:, :, None]
        out: Weights = weights.reshape(len(blocks), -1)
        return out


def _numbers(layout: Layout, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the scales and the minima, with their factors, (n_blocks, n_runs)."""
    stored: NDArray[Any] = parts.scales
    stored_minima = parts.minima
    if layout.scale == "u4":
        stored, stored_minima = stored & np.uint8(15), stored >> np.uint8(4)
    elif layout.scale == "e8m0":  # 2 ** (e - 127), halved because the table's values are doubled
        stored = np.ldexp(np.float32(1), stored.astype(np.int32) - 128)
    scales = stored.astype(np.float32)
    minima = None if stored_minima is None else stored_minima.astype(np.float32)
    if parts.head is None:
        return scales, minima
    head = parts.head.astype(np.float32)
    return scales * head[:, :1], None if minima is None else -(minima * head[:, 1:])


def half(blocks: Blocks, offset: int, n: int = 1) -> NDArray[np.float16]:
    """Return the n float16 at byte `offset` of each block, shape (n_blocks, n)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2 * n]).view(np.float16)


def nibbles(packed: Blocks) -> NDArray[np.uint8]:
    """Unpack (…, n) bytes to (…, 2 n) values: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def high_bits(blocks: Blocks, offset: int) -> NDArray[np.uint8]:
    """Return the 32 bits at byte `offset` of each block as the values 0 and 16, shape (n_blocks, 32)."""
    return np.unpackbits(blocks[:, offset : offset + 4], axis=-1, bitorder="little") << np.uint8(4)


class F32(BlockFormat):  # noqa: D101 - the name says it, as in the classes below
    @classmethod
    def decode(cls, blocks: Blocks) -> Weights:
        return blocks.view(np.float32)


class F16(BlockFormat):  # noqa: D101
    @classmethod
    def decode(cls, blocks: Blocks) -> Weights:
        return blocks.view(np.float16).astype(np.float32)


class BF16(BlockFormat):  # noqa: D101
    @classmethod
    def decode(cls, blocks: Blocks) -> Weights:
        return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


class Q4_0(QuantizedFormat):  # noqa: D101
    layout = Layout("q4_0", value_bits=4, run=32, scale="f16", zero_point=8)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 2:]), half(blocks, 0))


class Q4_1(QuantizedFormat):  # noqa: D101
    layout = Layout("q4_1", value_bits=4, run=32, scale="f16", has_minimum=True)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 4:]), half(blocks, 0), half(blocks, 2))


class Q5_0(QuantizedFormat):  # noqa: D101
    layout = Layout("q5_0", value_bits=5, run=32, scale="f16", zero_point=16)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 6:]) | high_bits(blocks, 2), half(blocks, 0))


class Q5_1(QuantizedFormat):  # noqa: D101
    layout = Layout("q5_1", value_bits=5, run=32, scale="f16", has_minimum=True)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 8:]) | high_bits(blocks, 4), half(blocks, 0), half(blocks, 2))


class Q8_0(QuantizedFormat):  # noqa: D101
    layout = Layout("q8_0", value_bits=8, run=32, scale="f16")

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(blocks[:, 2:].view(np.int8), half(blocks, 0))
