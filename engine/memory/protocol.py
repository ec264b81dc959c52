"""What a kind of memory is: the one protocol that full attention, sliding windows and recurrent states share.

A memory remembers `n_tokens` tokens. What it keeps of them is of two sorts:

* *rows*, one per token and never changed once computed (K and V of attention layers). To go on from a length n
  a memory needs its rows `first_row(n) .. n - 1`: all of them for full attention, the last n_swa for a sliding
  window. Rows are therefore stored once, by position, and a checkpoint merely refers to them.
* a *state*, which every token changes (recurrent layers): a checkpoint at n tokens is a copy of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from engine.arrays import F32


@dataclass(frozen=True)
class RowChunk:
    """The rows of positions lo .. hi - 1 of one memory part, as bytes.

    For each layer of the part, in order: its K rows, then its V rows, C-contiguous (the order in which
    llama.cpp's slot files keep them within a layer). `data` may hold more rows than are meant, `before` and `after`
    them: those of another branch, behind a fork, or of positions that are not wanted.
    """

    lo: int
    hi: int
    data: bytes | memoryview
    before: int = 0
    after: int = 0

    def cut(self, lo: int, hi: int) -> RowChunk:
        """Return the chunk of those of the rows that lie in lo .. hi - 1, of which there must be one."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        return replace(self, lo=lo, hi=hi, before=self.before + lo - self.lo, after=self.after + self.hi - hi)


class MemoryPart(ABC):
    """One kind of memory, for all the layers of a model that use it.

    Positions count tokens from the start of the conversation. A part never knows token ids.
    """

    kind: ClassVar[str]  # names the part in slot files
    rewindable: ClassVar[bool]  # whether it can be cut back to every earlier length
    n_tokens: int
    row_nbytes: int  # bytes of one token's rows, over all layers; 0 for a part without rows

    @abstractmethod
    def append(self, n: int) -> None:
        """Make room for n more tokens; the layers fill it.

        Before the next append, `rewind` to the length before can take it back, also when an error came in between or
        this raised one: all is then as if it had not been called.
        """

    @abstractmethod
    def reuse_point(self, n: int) -> int:
        """Return the largest length m <= n, m <= n_tokens, to which `rewind` can return without a checkpoint."""

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Forget the tokens from position n on. Requires reuse_point(n) == n."""

    @abstractmethod
    def first_row(self, n: int) -> int:
        """Return the first position whose row is needed to go on from a length of n; n if no row is needed."""

    @abstractmethod
    def has_rows(self, lo: int, hi: int) -> bool:
        """Whether the rows of positions lo .. hi - 1 are still here."""

    @abstractmethod
    def export_rows(self, lo: int, hi: int) -> RowChunk:
        """Return a copy of the rows lo .. hi - 1. Requires has_rows(lo, hi)."""

    @abstractmethod
    def row_values(self, lo: int, hi: int) -> Iterator[F32]:
        """Yield the values of rows lo .. hi - 1, those of K and of V for each layer: (hi - lo, n_head_kv, head_dim).

        Requires has_rows(lo, hi).
        """

    @abstractmethod
    def checkpoint(self) -> bytes | None:
        """Return what rows alone cannot bring back at the present length, None if they can."""

    @abstractmethod
    def restore(self, n: int, rows: Iterable[RowChunk], state: bytes | None) -> None:
        """Become n tokens long from the rows first_row(n) .. n - 1, in ascending chunks, and the state.

        Raises ValueError when the rows are not exactly those (some are missing, or there twice, or out of order), when
        sizes do not fit, or when a value is not finite; the memory is empty then.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of main memory held."""
