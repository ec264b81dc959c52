"""How K/V rows are kept: as floats, or in blocks of 32 quantized values along head_dim.

The dtype of an array says its type. Q8_0 and Q4_0 are the blocks of GGUF's tensor types of these names, byte for
byte, so that an array of them is what llama.cpp's slot files hold for unrotated rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.errors import UnsupportedError

KVRows = NDArray[Any]  # K or V rows of one layer, (n_rows, n_head_kv, items_per_head) of one of KV_TYPES

BLOCK_SIZE = 32


class RowSpan:
    """Which rows of a buffer the queries of a ubatch see: `first` to `end` - 1, the last ones those of the queries.

    Row i is of position `start` + i. The numbers are in memory that kernels read: what was recorded for one
    token is right for the next one when they have changed.
    """

    FIRST, END, START = 0, 8, 16  # where in the memory they are, in bytes

    def __init__(self, first: int = 0, end: int = 0, start: int = 0) -> None:
        self.array = np.array([first, end, start], np.int64)

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def first(self) -> int:
        """Index of the first row that is seen."""
        return int(self.array[0])

    @property
    def end(self) -> int:
        """Index of the row behind the last one."""
        return int(self.array[1])

    @property
    def start(self) -> int:
        """Position of row 0."""
        return int(self.array[2])

    def move(self, first: int, end: int, start: int, *, n_rows: int) -> None:
        """See other rows of a buffer of n_rows; raises ValueError where it doesn't have them.

        Operations that were recorded take the span at its word.
        """
        if not 0 <= first <= end <= n_rows:
            raise ValueError(f"the rows from {first} to {end} are not among {n_rows}")
        self.array[:] = first, end, start


Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", BLOCK_SIZE)])
Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", BLOCK_SIZE // 2)])  # low halves: the first 16 values
KV_TYPES: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4"), "q8_0": Q8_0, "q4_0": Q4_0}


def items_per_head(head_dim: int, dtype: np.dtype[Any]) -> int:
    """Return how many items of `dtype` keep the head_dim values of one head.

    Raises UnsupportedError where head_dim is no multiple of the block size.
    """
    if dtype.names is None:
        return head_dim
    if head_dim % BLOCK_SIZE:
        name = next(name for name, known in KV_TYPES.items() if known == dtype)
        raise UnsupportedError(
            f"This model can't keep its K/V rows as {name}: its heads have {head_dim} values, "
            f"which are not whole blocks of {BLOCK_SIZE}; choose f16."
        )
    return head_dim // BLOCK_SIZE


def values_per_head(rows: KVRows) -> int:
    """Return the head_dim of rows."""
    items: int = rows.shape[-1]
    return items if rows.dtype.names is None else items * BLOCK_SIZE


def quantize_rows(x: F32, dtype: np.dtype[Any]) -> KVRows:
    """Return rows x (n_rows, n_head_kv, head_dim) in a K/V type, rounded as llama.cpp's reference quantizers do."""
    if dtype == Q8_0:
        return _quantize_q8_0(_blocks(x))
    if dtype == Q4_0:
        return _quantize_q4_0(_blocks(x))
    return x.astype(dtype)


def store_rows(x: F32, rows: KVRows, span: RowSpan) -> None:
    """Write x (n_rows, n_head_kv, head_dim) to the last rows of a span of `rows`, in the K/V type that these have."""
    rows[span.end - len(x) : span.end] = quantize_rows(x, rows.dtype)


def dequantize_rows(rows: KVRows) -> F32:
    """Return the values of K/V rows, shape (n_rows, n_head_kv, head_dim)."""
    if rows.dtype == Q8_0:
        quants = rows["qs"]
    elif rows.dtype == Q4_0:
        quants = np.concatenate([rows["qs"] & 0x0F, rows["qs"] >> 4], axis=-1).view(np.int8) - np.int8(8)
    else:
        return rows.astype(np.float32)
    values: F32 = quants.astype(np.float32) * rows["d"].astype(np.float32)[..., None]
    return values.reshape(*rows.shape[:-1], values_per_head(rows))


def is_finite(rows: KVRows) -> bool:
    """Whether all values of K/V rows are finite."""
    values = np.ascontiguousarray(rows if rows.dtype.names is None else rows["d"])
    bits = values.view(f"<i{values.itemsize}").reshape(-1)
    if not bits.size:
        return True
    # what is not finite has the greatest exponent: as integers such numbers are the greatest, signed the positive ones
    # and unsigned the negative ones
    infinity = int(np.array(np.inf, values.dtype).view(bits.dtype))
    negative = int(np.array(-np.inf, values.dtype).view(f"<u{values.itemsize}"))
    return int(bits.max()) < infinity and int(bits.view(f"<u{values.itemsize}").max()) < negative


def _blocks(x: F32) -> F32:
    return x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK_SIZE, BLOCK_SIZE)


def _quantize_q8_0(x: F32) -> KVRows:
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    out = np.empty(x.shape[:-1], Q8_0)
    out["d"] = d[..., 0]
    out["qs"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)  # halves away from zero
    return out


def _quantize_q4_0(x: F32) -> KVRows:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    d = extreme / np.float32(-8)  # the extreme value becomes -8, the end of the range without a counterpart
    quants = np.minimum(x * _inverse(d) + np.float32(8.5), np.float32(15)).astype(np.uint8)
    low, high = quants[..., : BLOCK_SIZE // 2], quants[..., BLOCK_SIZE // 2 :]
    out = np.empty(x.shape[:-1], Q4_0)
    out["d"] = d[..., 0]
    out["qs"] = low | (high << 4)
    return out


def _inverse(d: F32) -> F32:
    """Return 1 / d; 0 where d is so small that the inverse overflows (as a float16 such a d is 0 as well)."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=np.abs(d) >= np.finfo(np.float32).tiny)
