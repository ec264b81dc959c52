"""Memory of attention layers: of all tokens, or of a sliding window of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from numpy.typing import DTypeLike

from engine.arrays import F32
from engine.kernels.kv_types import KVRows, RowSpan, dequantize_rows, store_rows
from engine.memory.kv_rows import KVBuffer, LayerShape
from engine.memory.protocol import MemoryPart, RowChunk

_LEAST_ROOM = 1 << 14  # rows that a window's buffer may have at once

StoreRows = Callable[[F32, KVRows, RowSpan], None]  # see kv_types.store_rows


class AttentionMemory(MemoryPart):
    """What both kinds share: rows by position, in one buffer."""

    def __init__(self, layers: Sequence[LayerShape], dtype: DTypeLike) -> None:
        self.n_tokens = 0
        self._appended = 0  # length before the newest append
        self._span = RowSpan()  # what the queries of the newest append see
        self._buffer = KVBuffer(layers, dtype)
        self.row_nbytes = self._buffer.row_nbytes
        self.layers = tuple(shape.layer for shape in layers)

    @abstractmethod
    def _first_visible(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""

    @property
    def generation(self) -> int:
        """Counts how often the rows have moved to other memory."""
        return self._buffer.generation

    def append(self, n: int) -> None:
        self._buffer.settle()
        self._appended = self.n_tokens
        self._make_room(n)
        start = self._buffer.start
        first, end = self._first_visible(self.n_tokens) - start, self.n_tokens + n - start
        self._span.move(first, end, start, n_rows=self._buffer.capacity)
        self.n_tokens += n

    @abstractmethod
    def _make_room(self, n: int) -> None:
        """Have the buffer hold n more rows."""

    def extend(self, layer: int, k: F32, v: F32, store: StoreRows = store_rows) -> tuple[KVRows, KVRows, RowSpan]:
        """Keep a layer's rows of the ubatch just appended; return the rows that its queries see.

        k and v are (n, n_head_kv, head_dim) for the n of the last `append`; `store` writes them in the memory's K/V
        type, see `Kernels.store_rows`. Returns the K rows and V rows of the buffer, and the span of them that is seen,
        always in order of position.
        """
        all_k, all_v, span = self.rows(layer)
        store(k, all_k, span)
        store(v, all_v, span)
        return all_k, all_v, span

    def rows(self, layer: int) -> tuple[KVRows, KVRows, RowSpan]:
        """Return what `extend` returned for a layer since the last `append`."""
        return *self._buffer.arrays(layer), self._span

    def has_rows(self, lo: int, hi: int) -> bool:
        return lo >= hi or (self._buffer.start <= lo and hi <= self.n_tokens)

    def export_rows(self, lo: int, hi: int) -> RowChunk:
        return self._buffer.export(lo, hi)

    def row_values(self, lo: int, hi: int) -> Iterator[F32]:
        for layer in self.layers:
            for rows in self._buffer.layer(layer, lo, hi):
                yield dequantize_rows(rows)

    def reinstate(self, n: int, rows: RowChunk) -> None:
        """Be n tokens long again after a `rewind`, with these rows in place of those computed since.

        Those behind must not have been overwritten.
        """
        self._buffer.overwrite(rows)
        self.n_tokens = self._appended = n

    def checkpoint(self) -> None:
        return None

    def restore(self, n: int, rows: Iterable[RowChunk], state: bytes | None) -> None:
        self.n_tokens = self._appended = 0
        self._buffer.start = 0
        if state is not None:
            raise ValueError("attention memory has no state beside its rows")
        self._buffer.load(self.first_row(n), n, rows)
        self.n_tokens = self._appended = n

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes


class FullAttentionMemory(AttentionMemory):
    """Rows of all tokens; can be cut back to any length."""

    kind: ClassVar[str] = "attention"
    rewindable: ClassVar[bool] = True

    def _first_visible(self, position: int) -> int:
        return 0

    def _make_room(self, n: int) -> None:
        if self.n_tokens + n > self._buffer.capacity:
            self._buffer.reserve(0, self.n_tokens, self.n_tokens + n)

    def reuse_point(self, n: int) -> int:
        return min(n, self.n_tokens)

    def rewind(self, n: int) -> None:
        self.n_tokens = self._appended = n

    def first_row(self, n: int) -> int:
        return 0


class SlidingWindowMemory(AttentionMemory):
    """Rows of the last n_swa tokens, and of some before them until the buffer is full.

    The buffer is contiguous and moved to its front when full, so that attention always gets its rows in order
    of position and exactly the window.
    """

    kind: ClassVar[str] = "sliding_window"
    rewindable: ClassVar[bool] = False

    def __init__(self, layers: Sequence[LayerShape], dtype: DTypeLike, *, n_swa: int) -> None:
        super().__init__(layers, dtype)
        self.n_swa = n_swa

    def _first_visible(self, position: int) -> int:
        return max(0, position - self.n_swa + 1)

    def _make_room(self, n: int) -> None:
        end = self.n_tokens + n
        if end > self._buffer.start + self._buffer.capacity:
            # room for another window behind this one, so that single tokens seldom move the buffer; but a window may be
            # wider than any text
            first = self.first_row(self.n_tokens)
            room = min(2 * self.n_swa, max(_LEAST_ROOM, 2 * (end - first)))
            self._buffer.reserve(first, self.n_tokens, max(end, first + room))

    def reuse_point(self, n: int) -> int:
        if n >= self.n_tokens:
            return self.n_tokens
        return n if self.first_row(n) >= self._buffer.start else 0

    def rewind(self, n: int) -> None:
        if n <= self._appended:
            self._buffer.take_back(self._appended)
        if n < self.n_tokens:
            self._buffer.settle()
            self.n_tokens = self._appended = n
        if n == 0:
            self._buffer.start = 0

    def first_row(self, n: int) -> int:
        return max(0, n - self.n_swa)
