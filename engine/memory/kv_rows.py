"""K/V rows of several layers in growing buffers: what both kinds of attention memory are made of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from engine.kernels.kv_types import KVRows, is_finite, items_per_head
from engine.memory.protocol import RowChunk


@dataclass(frozen=True)
class LayerShape:
    """Shape of the K/V rows of one layer; `layer` is its index in the model."""

    layer: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int


class KVBuffer:
    """Rows of consecutive positions from `start` on, one K and one V array per layer.

    K is kept after RoPE, V not transposed: the layout of llama.cpp with flash attention. Raises UnsupportedError for a
    K/V type whose blocks do not fit the heads.
    """

    def __init__(self, layers: Sequence[LayerShape], dtype: DTypeLike) -> None:
        self.layers = tuple(layers)
        self.dtype = np.dtype(dtype)
        self.start = 0
        self.capacity = 0
        self.generation = 0  # counts new arrays
        self._arrays = self._allocate(0)
        self._spare, self._n_spare = self._allocate(0), 0
        self._n_dropped = 0  # rows in the spare arrays that `take_back` puts before the others

    @property
    def row_nbytes(self) -> int:
        """Bytes of one token's rows, over all layers."""
        items: int = sum(k.shape[1] * (k.shape[2] + v.shape[2]) for k, v in self._arrays.values())
        return items * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, and of what can be taken back."""
        return (self.capacity + self._n_spare) * self.row_nbytes

    def arrays(self, layer: int) -> tuple[KVRows, KVRows]:
        """Return all of one layer's rows, and the room behind them; the first one is at `start`."""
        return self._arrays[layer]

    def layer(self, layer: int, lo: int, hi: int) -> tuple[KVRows, KVRows]:
        """Return views of one layer's rows at positions lo .. hi - 1."""
        k, v = self._arrays[layer]
        part = slice(lo - self.start, hi - self.start)
        return k[part], v[part]

    def reserve(self, lo: int, hi: int, end: int) -> None:
        """Make room for positions up to `end`, keeping the rows lo .. hi - 1 and dropping those before lo.

        Grows by doubling, so that a long conversation costs a bounded number of copies. Raises MemoryError before
        anything has changed.
        """
        n_dropped, capacity = lo - self.start, self.capacity
        if end - lo > capacity:
            capacity = max(end - lo, 2 * capacity, 256)
        new = self._arrays if capacity == self.capacity else self._allocate(capacity)
        if n_dropped > self._n_spare:
            self._spare, self._n_spare = self._allocate(n_dropped), n_dropped
        moves = dict[int, list[_Move]]()
        for layer, pair in self._arrays.items():
            dropped = [_move(rows[:n_dropped], to) for rows, to in zip(pair, self._spare[layer], strict=True)]
            kept = (rows[n_dropped : hi - self.start] for rows in pair)
            moves[layer] = dropped + [_move(rows, to) for rows, to in zip(kept, new[layer], strict=True)]
        self.generation += new is not self._arrays
        for layer, moved in moves.items():
            for move in moved:
                ctypes.memmove(*move)
            self._arrays[layer] = new[layer]  # so that the old arrays are gone before the next ones fill
        self.capacity, self.start, self._n_dropped = capacity, lo, n_dropped

    def take_back(self, hi: int) -> None:
        """Have the rows again that the newest `reserve` dropped, before those up to hi - 1."""
        n = self._n_dropped
        if n:
            arrays, spare = ([rows for pair in a.values() for rows in pair] for a in (self._arrays, self._spare))
            moves = [_move(rows[: hi - self.start], rows[n:]) for rows in arrays]
            for move in moves + [_move(dropped[:n], rows) for dropped, rows in zip(spare, arrays, strict=True)]:
                ctypes.memmove(*move)
            self.start -= n
        self._n_dropped = 0

    def settle(self) -> None:
        """Forget what could be taken back."""
        self._n_dropped = 0

    def export(self, lo: int, hi: int) -> RowChunk:
        """Return a copy of the rows lo .. hi - 1."""
        arrays = [rows for shape in self.layers for rows in self.layer(shape.layer, lo, hi)]
        return RowChunk(lo, hi, b"".join(np.ascontiguousarray(rows).data for rows in arrays))

    def load(self, lo: int, hi: int, chunks: Iterable[RowChunk]) -> None:
        """Replace everything by the rows lo .. hi - 1 out of ascending chunks; see MemoryPart.restore."""
        self.reserve(self.start, self.start, self.start + hi - lo)
        self.start = lo
        position = lo
        for chunk in chunks:
            if chunk.lo > position:
                raise ValueError(f"rows {position} to {chunk.lo - 1} are missing")
            if not position == chunk.lo < chunk.hi <= hi:
                raise ValueError(f"rows {chunk.lo} to {chunk.hi - 1} come where {position} to {hi - 1} are wanted")
            self.overwrite(chunk)
            position = chunk.hi
        if position < hi:
            raise ValueError(f"rows {position} to {hi - 1} are missing")

    def overwrite(self, chunk: RowChunk) -> None:
        """Replace rows for which there is room; raise ValueError where the bytes are too few, or not all finite."""
        wanted = slice(chunk.before, chunk.before + chunk.hi - chunk.lo)
        n_rows = wanted.stop + chunk.after
        if len(chunk.data) != n_rows * self.row_nbytes:
            raise ValueError(f"{len(chunk.data)} bytes are not {n_rows} rows of {self.row_nbytes} bytes")
        if not is_finite(np.frombuffer(chunk.data, self.dtype)):
            raise ValueError(f"rows {chunk.lo} to {chunk.hi - 1} are not finite")
        offset = 0
        for shape in self.layers:
            for rows in self.layer(shape.layer, chunk.lo, chunk.hi):
                count = n_rows * rows.shape[1] * rows.shape[2]
                source = np.frombuffer(chunk.data, self.dtype, count, offset)
                rows[...] = source.reshape(n_rows, *rows.shape[1:])[wanted]
                offset += source.nbytes

    def _allocate(self, capacity: int) -> dict[int, tuple[KVRows, KVRows]]:
        """Return new arrays for so many rows, by layer."""

        def rows(shape: LayerShape, head_dim: int) -> KVRows:
            return np.empty((capacity, shape.n_head_kv, items_per_head(head_dim, self.dtype)), self.dtype)

        return {shape.layer: (rows(shape, shape.head_dim_k), rows(shape, shape.head_dim_v)) for shape in self.layers}


_Move = tuple[int, int, int]


def _move(source: KVRows, target: KVRows) -> _Move:
    """Return what `memmove` takes to copy rows to the first ones of `target`, which may be the same in part.

    NumPy would copy such rows twice, and might find no memory for that when those of other layers have moved.
    """
    return target.ctypes.data, source.ctypes.data, source.nbytes
