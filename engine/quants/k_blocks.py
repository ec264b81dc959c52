"""The K-quants: 256 weights to a block, in runs of 16 or 32 whose own scales are quantized too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.kernels.layout import Layout
from engine.quants.blocks import Blocks, Parts, QuantizedFormat, half, nibbles

_PAIR_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _bit_pairs(packed: Blocks) -> NDArray[np.uint8]:
    """Unpack (…, n) bytes to (…, 4, n) values of two bits, the lowest bits first."""
    return (packed[..., None, :] >> _PAIR_SHIFTS) & np.uint8(3)


def _single_bits(packed: Blocks) -> NDArray[np.uint8]:
    """Unpack (…, n) bytes to (…, 8, n) bits, the lowest first."""
    return (packed[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)


def _scales_and_minima(blocks: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the scale and the minimum of each run of 32 weights of Q4_K and Q5_K, both (n_blocks, 8).

    Eight 6-bit scales and eight 6-bit minima share bytes 4-15: the first four of each lie whole in bytes 4-7 and
    8-11; the low halves of the others in bytes 12-15, their top bits above the first four.
    """
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 6) << 4)], axis=-1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales, minima


class Q2_K(QuantizedFormat):  # noqa: D101 - the name says it, as in the classes below
    layout = Layout("q2_k", value_bits=2, run=16, scale="u4", has_minimum=True, has_head=True)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        values = _bit_pairs(blocks[:, 16:80].reshape(-1, 2, 32)).reshape(-1, 256)
        return Parts(values, blocks[:, :16], head=half(blocks, 80, 2))


class Q3_K(QuantizedFormat):  # noqa: D101
    layout = Layout("q3_k", value_bits=3, run=16, scale="i8", has_head=True, zero_point=4)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        # sixteen 6-bit scales in bytes 96-107: low halves in the first eight bytes, top bits in the last four
        scales = nibbles(blocks[:, 96:104]) | (_bit_pairs(blocks[:, 104:108]).reshape(-1, 16) << np.uint8(4))
        low = _bit_pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
        values = low | (_single_bits(blocks[:, :32]) << np.uint8(2))
        return Parts(values.reshape(-1, 256), scales.view(np.int8) - np.int8(32), head=half(blocks, 108))


class Q4_K(QuantizedFormat):  # noqa: D101
    layout = Layout("q4_k", value_bits=4, run=32, scale="i8", has_minimum=True, has_head=True)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        values = nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
        return Parts(values, *_scales_and_minima(blocks), head=half(blocks, 0, 2))


class Q5_K(QuantizedFormat):  # noqa: D101
    layout = Layout("q5_k", value_bits=5, run=32, scale="i8", has_minimum=True, has_head=True)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
        values = low | (_single_bits(blocks[:, 16:48]) << np.uint8(4))
        return Parts(values.reshape(-1, 256), *_scales_and_minima(blocks), head=half(blocks, 0, 2))


class Q6_K(QuantizedFormat):  # noqa: D101
    layout = Layout("q6_k", value_bits=6, run=16, scale="i8", has_head=True, zero_point=32)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
        top = _bit_pairs(blocks[:, 128:192].reshape(-1, 2, 32)).reshape(-1, 8, 32)
        values = low | (top << np.uint8(4))
        return Parts(values.reshape(-1, 256), blocks[:, 192:208].view(np.int8), head=half(blocks, 208))
