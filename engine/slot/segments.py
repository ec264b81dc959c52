"""The tree of what a model saw: runs of evaluated tokens, forking where conversations branch.

Pure bookkeeping: token ids and which of their rows are stored; no tensors, no file.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from engine.arrays import TokenIds
from engine.slot.records import Cursor, Segment, StoredRows

ROOT = Cursor(None, 0)


@dataclass(frozen=True)
class Run:
    """The part of one segment that lies on a path: its first `length` ids, at positions from `start` on."""

    segment: Segment
    start: int
    length: int

    @property
    def end(self) -> int:
        """Position behind the run."""
        return self.start + self.length


class SegmentTree:
    """All segments of one model in one conversation, and the index of their stored rows."""

    def __init__(self, segments: Iterable[Segment] = (), rows: Iterable[StoredRows] = ()) -> None:
        self._segments: dict[int, Segment] = {}
        self._starts: dict[int, int] = {}
        self._children: dict[int | None, list[int]] = defaultdict(list)
        self._rows: dict[tuple[int, str], list[StoredRows]] = defaultdict(list)
        for segment in segments:
            self.add(segment)
        for span in rows:
            self.add_rows(span)

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Add a segment whose parent is already there."""
        self._starts[segment.id] = self.n_tokens(Cursor(segment.parent, segment.parent_length))
        self._segments[segment.id] = segment
        self._children[segment.parent].append(segment.id)

    def add_rows(self, span: StoredRows) -> None:
        """Note that a span of rows is stored."""
        insort(self._rows[span.segment, span.part], span, key=lambda span: (span.lo, span.id))

    def remove_rows(self, span: StoredRows) -> None:
        """Note that a span of rows can't be had any more."""
        self._rows[span.segment, span.part].remove(span)

    def rows(self, run: Run, part: str, lo: int, hi: int) -> list[StoredRows]:
        """Return the stored spans that overlap the positions lo .. hi - 1 of a run, in ascending order."""
        lo, hi = max(lo, run.start) - run.start, min(hi, run.end) - run.start
        return [span for span in self._rows.get((run.segment.id, part), ()) if span.lo < hi and span.hi > lo]

    def spans(self) -> list[StoredRows]:
        """Return all stored spans."""
        return [span for spans in self._rows.values() for span in spans]

    def spans_of(self, segment: int) -> list[StoredRows]:
        """Return the stored spans of one segment, of all parts."""
        return [span for (owner, _), spans in self._rows.items() if owner == segment for span in spans]

    def segments(self) -> Iterable[Segment]:
        """Return all segments, parents before children."""
        return self._segments.values()

    def segment(self, id: int) -> Segment:
        """Return the segment with this id."""
        return self._segments[id]

    def n_tokens(self, cursor: Cursor) -> int:
        """Return how many tokens lie before a cursor."""
        return 0 if cursor.segment is None else self._starts[cursor.segment] + cursor.length

    def is_tip(self, cursor: Cursor) -> bool:
        """Whether nothing was seen behind a cursor on its own segment, nor on one that goes on from there."""
        if cursor.segment is None:
            return not self._children[None]
        return self.is_end(cursor) and not self._children[cursor.segment]

    def is_end(self, cursor: Cursor) -> bool:
        """Whether a cursor stands at the end of its segment."""
        return cursor.segment is not None and cursor.length == len(self._segments[cursor.segment].token_ids)

    def path(self, cursor: Cursor) -> list[Run]:
        """Return the runs from the root to a cursor."""
        return list(self.runs_up(cursor))[::-1]

    def runs_up(self, cursor: Cursor) -> Iterator[Run]:
        """Yield the runs from a cursor back to the root."""
        while cursor.segment is not None:
            segment = self._segments[cursor.segment]
            yield Run(segment, self._starts[segment.id], cursor.length)
            cursor = Cursor(segment.parent, segment.parent_length)

    def token_ids(self, cursor: Cursor) -> TokenIds:
        """Return the ids from the root to a cursor, int32."""
        runs = [run.segment.token_ids[: run.length] for run in self.path(cursor)]
        return np.concatenate(runs) if runs else np.empty(0, np.int32)

    def back_to(self, cursor: Cursor, n: int) -> Cursor:
        """Return the cursor n tokens from the root on the path to `cursor`."""
        for run in reversed(self.path(cursor)):
            if run.start < n:
                return Cursor(run.segment.id, n - run.start)
        return ROOT

    def matches(self, prompt: TokenIds) -> list[Cursor]:
        """Return, for each branch, the cursor up to which its ids are those of the prompt.

        Cursors that lie on the path to another one of them are left out.
        """
        found: list[Cursor] = []
        passed: set[Cursor] = set()
        todo = list(self._children[None])
        while todo:
            segment = self._segments[todo.pop()]
            length = common_prefix(segment.token_ids, prompt[self._starts[segment.id] :])
            if length:
                found.append(Cursor(segment.id, length))
                passed.add(Cursor(segment.parent, segment.parent_length))
                children = (self._segments[child] for child in self._children[segment.id])
                todo += [child.id for child in children if child.parent_length <= length]
        return [cursor for cursor in found if cursor not in passed]

    def gaps(self, path: list[Run], part: str, lo: int, hi: int) -> list[tuple[int, int]]:
        """Return the ranges within lo .. hi - 1 on a path whose rows are not stored, in ascending order."""
        gaps = []
        for run in path:
            position, end = max(lo, run.start), min(hi, run.end)
            for span in self.rows(run, part, lo, hi):
                if position < run.start + span.lo:
                    gaps.append((position, run.start + span.lo))
                position = max(position, run.start + span.hi)
            if position < end:
                gaps.append((position, end))
        return gaps


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """Return the number of ids with which both begin."""
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n
