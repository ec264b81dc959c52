"""The check of state that came from elsewhere: some of it is computed again, from what is stored before it.

It tells whether a memory can be that of the ids beside it. Rows of another text differ everywhere, and are found out
wherever one looks; a few words exchanged within a long text only where one happens to look. So places are chosen at
random, one of them near the beginning, where instructions stand, and the end is always looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.arrays import F32
from engine.errors import NotFiniteError
from engine.kernels.kv_types import Q4_0
from engine.memory import Memory
from engine.models import Model
from engine.slot.archive import Archive
from engine.slot.reading import Reading, UnfitError
from engine.slot.records import Checkpoint, Cursor, Reason
from engine.slot.segments import ROOT

N_TOKENS = 8  # computed again at each place, at least
FARTHEST = 512  # tokens that are computed again, at most, to reach a place where memory can't be cut back
_BEGINNING = 256  # tokens
_N_PLACES = 4
_N_UBATCH = 512

# How far what is computed again may be from what is stored: see `distance`. Other ubatches and other kernels made
# differences of up to 0.05 with SmolLM2 and Gemma 3 (Q4_1, Q4_K_M; K/V types f16, f32 and q8_0), and 0.41 with q4_0,
# which rounds coarsely; rows of another text were never nearer than 0.85 at any place.
_FARTHEST_APART = 0.5
_FARTHEST_APART_Q4_0 = 0.65


_Start: TypeAlias = tuple[Cursor, Checkpoint | None]  # where to begin, and the checkpoint there if one is needed


class ReceivedStateError(UnfitError):
    """State that came from elsewhere is not used; `str` says so to people."""

    reason: ClassVar[Reason]


class ForeignStateError(ReceivedStateError):
    """It is not that of its text."""

    reason: ClassVar[Reason] = "damaged"

    def __init__(self) -> None:
        super().__init__(
            "What this file holds of the model's memory is not that of its text: it was put aside, and the model reads "
            "the text again."
        )


class UnprovenStateError(ReceivedStateError):
    """It can't be checked: nothing near before it is stored that it follows from."""

    reason: ClassVar[Reason] = "state_dropped"

    def __init__(self) -> None:
        super().__init__(
            "What this file holds of the model's memory was not computed here and can't be checked: it was put aside, "
            "and the model reads that part of the text again, once."
        )


@dataclass(frozen=True)
class SpotCheck:
    """Checks memories of a model that were read from an archive; `random` chooses the places.

    `between_layers` is called while a place is computed, and may raise to cancel.
    """

    model: Model
    kv_type: DTypeLike
    archive: Archive
    between_layers: Callable[[], None] = lambda: None
    random: Random = field(default_factory=SystemRandom)

    def check(self, reading: Reading, memory: Memory, at: Cursor, hidden: F32 | None) -> None:
        """Hold `memory`, which `reading` gave for a place, and its final hidden state against what is computed.

        What was read counts as checked afterwards, and the memory is as it was. Raises ForeignStateError or
        UnprovenStateError; then, and when cancelled, the memory is of no use any more.
        """
        try:
            with np.errstate(all="ignore"):  # whatever comes of numbers that nobody computed
                if memory.rewindable:
                    for start, stop in self._places(reading, memory.n_tokens):
                        self._check_in_place(memory, at, start, stop, hidden)
                else:
                    self._check_from(self._start(at, memory), memory, at, hidden)
                    for end in self._others(at, memory):
                        self._check_other(end)
        except NotFiniteError as error:
            raise ForeignStateError from error
        self._vouch_for(reading)

    # --- memory that can be cut back: anywhere ----------------------------------------------------------------

    def _places(self, reading: Reading, n: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of positions to compute again: near the beginning, elsewhere, and the end."""
        received = np.array(sorted({i for lo, hi in reading.received for i in range(lo, hi)}), np.int64)
        strata = [received[:_BEGINNING], *np.array_split(received, _N_PLACES - 2)]
        starts = {int(stratum[self.random.randrange(len(stratum))]) for stratum in strata if len(stratum)}
        for start in sorted(starts | {max(0, n - N_TOKENS)}):
            yield start, min(start + N_TOKENS, n)

    def _check_in_place(self, memory: Memory, at: Cursor, start: int, stop: int, hidden: F32 | None) -> None:
        n = memory.n_tokens
        rows = {part.kind: part.export_rows(start, stop) for part in memory.parts}
        stored = [values for part in memory.parts for values in part.row_values(start, stop)]
        memory.rewind(start)
        last = self._evaluate(memory, at, stop)
        self._compare(stored, (values for part in memory.parts for values in part.row_values(start, stop)))
        if hidden is not None and stop == n:
            self._compare([hidden], [last])
        memory.reinstate(n, rows)

    # --- other memory: where an earlier place is stored -------------------------------------------------------

    def _others(self, at: Cursor, memory: Memory) -> Iterator[Checkpoint]:
        """Yield checkpoints before a place to look at as well, if that costs little: the first one, and some others."""
        known = [c for c in self._checkpoints(at, memory) if c.cursor != at and c.id not in self.archive.origins]
        left = FARTHEST
        for end in (*known[:1], *self.random.sample(known[1:], min(_N_PLACES - 2, len(known[1:])))):
            start = self._start(end.cursor, memory)
            cost = left + 1 if start is None else self._n(end.cursor) - self._n(start[0])
            if cost <= left:
                left -= cost
                yield end

    def _check_other(self, end: Checkpoint) -> None:
        reading = Reading(self.archive)
        try:
            memory, hidden = reading.memory(self.model, self.kv_type, end.cursor, end)
            self._check_from(self._start(end.cursor, memory), memory, end.cursor, hidden)
        except ForeignStateError:
            raise
        except UnfitError:  # nobody goes on from there before it was looked at itself
            return
        self._vouch_for(reading)

    def _check_from(self, start: _Start | None, memory: Memory, at: Cursor, hidden: F32 | None) -> None:
        if start is None:
            raise UnprovenStateError
        again = self.model.new_memory(self.kv_type)
        if start[0] != ROOT:
            try:
                again, _ = Reading(self.archive).memory(self.model, self.kv_type, *start)
            except UnfitError as error:
                raise UnprovenStateError from error
        n_before, n = again.n_tokens, memory.n_tokens
        last = self._evaluate(again, at, n)
        for part, other in zip(memory.parts, again.parts, strict=True):
            lo = max(n_before, part.first_row(n))
            if lo < n:
                self._compare(part.row_values(lo, n), other.row_values(lo, n))
        self._compare(_states(memory), _states(again))
        if hidden is not None:
            self._compare([hidden], [last])

    def _start(self, at: Cursor, memory: Memory) -> _Start | None:
        """Return the nearest stored place from which one can be computed, with its checkpoint if it takes one.

        The first checkpoint is computed from nothing, if it is near: else nobody would see how its text begins.
        """
        n = self._n(at)
        before = [c for c in self._checkpoints(at, memory) if self._n(c.cursor) < n]
        if not before and n <= FARTHEST:
            return ROOT, None
        if n >= N_TOKENS and all(part.row_nbytes for part in memory.parts):
            near = self.archive.tree.back_to(at, n - N_TOKENS)
            if self._has_rows(near, memory):
                return near, None
        for checkpoint in reversed(before):
            if N_TOKENS <= n - self._n(checkpoint.cursor) <= FARTHEST:
                return checkpoint.cursor, checkpoint
        return (ROOT, None) if n <= FARTHEST else None

    def _checkpoints(self, at: Cursor, memory: Memory) -> list[Checkpoint]:
        """Return the checkpoints on the path to a place that can be gone back to, the first one first."""
        lengths = {run.segment.id: run.length for run in self.archive.tree.path(at)}
        known = self.archive.checkpoints.values()
        here = [c for c in known if c.length <= lengths.get(c.segment, -1) and self._has_rows(c.cursor, memory)]
        return sorted(here, key=lambda c: self._n(c.cursor))

    def _has_rows(self, at: Cursor, memory: Memory) -> bool:
        n, path = self._n(at), self.archive.tree.path(at)
        ranges = ((part.kind, part.first_row(n)) for part in memory.parts if part.row_nbytes)
        return not any(self.archive.tree.gaps(path, kind, lo, n) for kind, lo in ranges)

    # --- what both share --------------------------------------------------------------------------------------

    def _vouch_for(self, reading: Reading) -> None:
        self.archive.origins.update(dict.fromkeys(reading.records, False))

    def _n(self, at: Cursor) -> int:
        return self.archive.tree.n_tokens(at)

    def _evaluate(self, memory: Memory, at: Cursor, stop: int) -> F32:
        """Evaluate the ids on the path to a place up to position `stop`; return the last final hidden state."""
        token_ids = self.archive.tree.token_ids(at)
        last = np.empty((0, 0), np.float32)
        while memory.n_tokens < stop:
            ubatch = token_ids[memory.n_tokens : min(memory.n_tokens + _N_UBATCH, stop)]
            last = self.model.forward(ubatch, memory, between_layers=self.between_layers)[-1:].copy()
        return last

    def _compare(self, stored: Iterable[F32], computed: Iterable[F32]) -> None:
        limit = _FARTHEST_APART_Q4_0 if np.dtype(self.kv_type) == Q4_0 else _FARTHEST_APART
        if not distance(stored, computed) <= limit:
            raise ForeignStateError


def distance(stored: Iterable[F32], computed: Iterable[F32]) -> float:
    """Return how far apart arrays of (n_tokens, ...) are: for the token for which it is most, the mean over the arrays.

    It is the Euclidean length of the difference, relative to that of what was computed: about 1 where both have nothing
    to do with each other.
    """
    apart = [_relative(a, b) for a, b in zip(stored, computed, strict=True) if a.size]
    return float(np.mean(apart, axis=0).max()) if apart else 0.0


def _relative(stored: F32, computed: F32) -> NDArray[np.float64]:
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (stored, computed))
    scale = np.linalg.norm(b, axis=1)
    difference = np.linalg.norm(a - b, axis=1)
    relative: NDArray[np.float64] = np.divide(difference, scale, out=difference.copy(), where=scale > 0)
    return relative


def _states(memory: Memory) -> Iterator[F32]:
    for state in memory.states.values():
        for array in state:
            yield array[None]
