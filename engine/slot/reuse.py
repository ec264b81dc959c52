"""What of a prompt is already known: the decision, without a tensor in sight.

The longest common prefix of the prompt and each stored branch says what could be reused. Memory without a state
beside its rows returns to the last place before which all the rows that it needs are stored: exactly there, if it can
be cut back to any length. Other memory returns to the newest checkpoint, or to where the live slot stands. To sample
without evaluating anything, the final hidden state at the prompt's end must be known as well: it belongs to the
checkpoint there, or to the live slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.arrays import TokenIds
from engine.slot.records import Checkpoint, Cursor, Reason
from engine.slot.segments import ROOT, Run, SegmentTree

_MAX_BRANCHES = 256  # the longest ones, in which a place is looked for: a file may have any number

IN_WORDS: Mapping[str, str] = {
    "new_chat": "there is no stored state",
    "diverged": "the text before it differs from what the model saw",
    "no_checkpoint": "there is no checkpoint nearer",
    "other_model": "the stored state is another model's",
    "other_kv_type": "the stored state has another K/V type",
    "damaged": "the stored state is damaged",
    "state_dropped": "the stored state was dropped",
}
"""Why not more was reused, for people; `none` needs no words."""
SURPRISING: frozenset[str] = frozenset(IN_WORDS) - {"new_chat", "diverged"}
"""What nobody expects who did not cause it: said before it costs anything."""


@dataclass(frozen=True)
class Live:
    """Where the live slot stands."""

    cursor: Cursor
    n_tokens: int
    has_hidden: bool  # whether the final hidden state of its last token is known


@dataclass(frozen=True)
class Reuse:
    """The first n tokens of a prompt are known: at `cursor`, and what is needed is `live` or stored."""

    cursor: Cursor
    n: int
    n_common: int  # length of the longest common prefix with anything seen before
    checkpoint: Checkpoint | None  # the one at exactly n, if any
    reason: Reason  # why not more


NeededRows = Callable[[int], Iterable[tuple[str, int]]]  # length -> (part, first row) for parts that have rows


@dataclass(frozen=True)
class ReusePlanner:
    """Looks for the best place in the tree to go on from."""

    tree: SegmentTree
    checkpoints: Iterable[Checkpoint]
    needed_rows: NeededRows
    rewindable: bool
    stateless: bool  # whether the memory has nothing but rows

    def plan(self, prompt: TokenIds, live: Live) -> Reuse:
        """Return what to reuse of `prompt`. Its reason compares with what was seen, not with what was wished."""
        matches = sorted(self.tree.matches(prompt), key=self._n, reverse=True)
        n_common = max(map(self._n, matches), default=0)
        places = [ROOT, *(self._best_place(match, len(prompt), live) for match in matches[:_MAX_BRANCHES])]
        # at equal length prefer where the slot stands (nothing to load), then the newest branch
        at_live = {run.segment.id for run in self.tree.path(live.cursor)}
        cursor = max(places, key=lambda c: (self._n(c), c.segment in at_live, c.segment or 0))
        n = self._n(cursor)
        return Reuse(cursor, n, n_common, self._checkpoint_at(cursor), self._reason(prompt, matches, n, n_common))

    def _best_place(self, match: Cursor, n_prompt: int, live: Live) -> Cursor:
        """Return the last place on the path to `match` from which the prompt can be gone on with."""
        path = self.tree.path(match)
        rows = _RowsOfPath(self.tree, path, self.needed_rows)
        runs = {run.segment.id: run for run in path}

        def is_usable(cursor: Cursor, *, has_hidden: bool) -> bool:
            run = runs.get(cursor.segment or 0)
            return run is not None and cursor.length <= run.length and (has_hidden or self._n(cursor) < n_prompt)

        best = ROOT
        if is_usable(live.cursor, has_hidden=live.has_hidden):
            best = live.cursor
        kept = {cursor for run in path for cursor in self._kept.get(run.segment.id, ())}
        for cursor in sorted((c for c in kept if is_usable(c, has_hidden=True)), key=self._n, reverse=True):
            if self._n(cursor) <= self._n(best):
                break
            if rows.are_stored(self._n(cursor)):
                best = cursor
                break
        if self.stateless:
            n = min(self._n(match), n_prompt - 1)
            n = max(min(n, self._shared(path, live)) if self.rewindable else 0, rows.stored_until(n))
            if n > self._n(best):
                best = self.tree.back_to(match, n)
        return best

    @cached_property
    def _kept(self) -> Mapping[int | None, list[Cursor]]:
        """The places of the checkpoints, by segment."""
        kept: dict[int | None, list[Cursor]] = defaultdict(list)
        for checkpoint in self.checkpoints:
            kept[checkpoint.segment].append(checkpoint.cursor)
        return kept

    def _n(self, cursor: Cursor) -> int:
        return self.tree.n_tokens(cursor)

    def _shared(self, path: list[Run], live: Live) -> int:
        """Return how many tokens a path has in common with the live one."""
        shared = 0
        for ours, theirs in zip(path, self.tree.path(live.cursor), strict=False):
            if ours.segment.id != theirs.segment.id:
                break
            shared = min(ours.end, theirs.end)
            if ours.length != theirs.length:
                break
        return shared

    def _checkpoint_at(self, cursor: Cursor) -> Checkpoint | None:
        here = (checkpoint for checkpoint in self.checkpoints if checkpoint.cursor == cursor)
        return max(here, key=lambda c: c.id, default=None)

    def _reason(self, prompt: TokenIds, matches: list[Cursor], n: int, n_common: int) -> Reason:
        if not len(self.tree):
            return "new_chat"
        if n < min(n_common, len(prompt) - 1):
            return "no_checkpoint"
        ends = [match for match in matches if self.tree.n_tokens(match) == n_common]
        if n_common == len(prompt) or any(self.tree.is_tip(match) for match in ends):
            return "none"
        return "diverged"


class _RowsOfPath:
    """Which of the rows that are needed to go on from a place on a path are stored."""

    def __init__(self, tree: SegmentTree, path: list[Run], needed: NeededRows) -> None:
        self._tree = tree
        self._path = path
        self._needed = needed
        self._gaps: dict[str, list[tuple[int, int]]] = {}  # by part; looked for once

    def are_stored(self, n: int) -> bool:
        """Whether there is no gap in what n tokens need."""
        return not any(self._last_gap(part, lo, n) is not None for part, lo in self._needed(n))

    def stored_until(self, n: int) -> int:
        """Return the last place at or before n for which there is no gap."""
        while gaps := [gap for part, lo in self._needed(n) if (gap := self._last_gap(part, lo, n)) is not None]:
            n = min(gaps)
        return n

    def _last_gap(self, part: str, lo: int, hi: int) -> int | None:
        """Return where the last gap in lo .. hi - 1 begins, None if there is none."""
        if part not in self._gaps:
            self._gaps[part] = self._tree.gaps(self._path, part, 0, self._path[-1].end)
        before = bisect_left(self._gaps[part], (hi, hi)) - 1
        if before < 0:
            return None
        start, end = self._gaps[part][before]
        return max(lo, start) if end > lo else None
