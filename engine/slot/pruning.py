"""Keeps the state in a slot file within its budget: drops the checkpoints that `Retention` names, and their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

from engine.memory import MemoryPart
from engine.slot.archive import Archive
from engine.slot.records import Cursor
from engine.slot.retention import Place, Retention, RowCost
from engine.slot.segments import SegmentTree

_FAR = 1 << 40  # a length that no conversation has


def prune(
    archive: Archive, parts: Sequence[MemoryPart], *, live: Cursor, n_kept: int, budget: int, rewindable: bool
) -> None:
    """Drop checkpoints, and rows that no checkpoint refers to, until the rest has at most `budget` bytes.

    `live` is where the conversation stands. Its checkpoint stays, if there is one; so do the rows of its first
    `n_kept` tokens in parts that can be cut back, which alone must not exceed the budget.
    """
    if archive.nbytes <= budget:
        return
    kept = archive.tree.back_to(live, n_kept)
    places = dict(_places(archive, live))
    retention = Retention(
        list(places.values()),
        [RowCost(part.row_nbytes, _FAR - part.first_row(_FAR)) for part in parts],
        live=next((id for id, cursor in _cursors(archive, live).items() if cursor == live), None),
        rewindable=rewindable,
    )
    _drop_rows(archive, parts, kept)
    while archive.nbytes > budget and (dropped := retention.drop()):
        archive.drop_checkpoint(archive.checkpoints[dropped.id])
        archive.log(
            "evict",
            n_tokens=places[dropped.id].n_tokens,
            nbytes=dropped.nbytes,
            reason="disk_budget",
            expected_tokens=round(dropped.tokens, 1),
        )
        if retention.nbytes <= budget:
            _drop_rows(archive, parts, kept)
    _drop_rows(archive, parts, kept)
    _drop_tail(archive, kept, budget)
    archive.shrink()


def _cursors(archive: Archive, live: Cursor) -> dict[int, Cursor]:
    """Return the checkpoints, those given up as well, the forks between them, and the live place, by id."""
    ids = count(-1, -1)
    places = {cursor: next(ids) for cursor in (*_forks(archive.tree), live) if cursor.segment is not None}
    places |= {c.cursor: c.id for c in (*archive.given_up.values(), *archive.checkpoints.values())}
    return {id: cursor for cursor, id in places.items()}


def _places(archive: Archive, live: Cursor) -> Iterator[tuple[int, Place]]:
    """Yield what `_cursors` returns as places of the tree, parents before children."""
    tree = archive.tree
    known = {c.id: c for c in (*archive.given_up.values(), *archive.checkpoints.values())}
    ids = {cursor: id for id, cursor in _cursors(archive, live).items()}
    lengths: dict[int, list[int]] = defaultdict(list)
    for cursor in ids:
        if cursor.segment is not None:
            lengths[cursor.segment].append(cursor.length)
    for segment in tree.segments():
        for length in sorted(lengths[segment.id]):
            cursor = Cursor(segment.id, length)
            parent = _place_above(tree, cursor, lengths)
            place = Place(ids[cursor], None if parent is None else ids[parent], tree.n_tokens(cursor))
            if (checkpoint := known.get(place.id)) is not None:
                place = Place(place.id, place.parent, place.n_tokens, checkpoint.reason, checkpoint.nbytes)
            yield place.id, place


def _forks(tree: SegmentTree) -> Iterator[Cursor]:
    """Yield the places behind which there is more than one way to go on."""
    ways: dict[Cursor, int] = defaultdict(int)
    for segment in tree.segments():
        ways[Cursor(segment.parent, segment.parent_length)] += 1
    for cursor, n in ways.items():
        if cursor.segment is not None and (n > 1 or not tree.is_end(cursor)):
            yield cursor


def _place_above(tree: SegmentTree, cursor: Cursor, lengths: dict[int, list[int]]) -> Cursor | None:
    below = cursor.length - 1
    for run in tree.runs_up(cursor):
        above = max((length for length in lengths[run.segment.id] if length <= min(below, run.length)), default=None)
        if above is not None:
            return Cursor(run.segment.id, above)
        below = _FAR
    return None


def _drop_tail(archive: Archive, kept: Cursor, budget: int) -> None:
    """Drop the last rows before a cursor, a piece at a time, until the budget is met: it is a limit."""
    for run in archive.tree.runs_up(kept):
        for stored in sorted(archive.tree.spans_of(run.segment.id), key=lambda stored: stored.lo, reverse=True):
            if archive.nbytes <= budget:
                return
            archive.drop_rows(stored)


def _drop_rows(archive: Archive, parts: Sequence[MemoryPart], kept: Cursor) -> None:
    """Drop the rows that neither a checkpoint nor a cursor refers to."""
    needed: set[int] = set()
    for part in parts:
        if part.rewindable:
            _add_needed(needed, archive.tree, part, kept)
        for checkpoint in archive.checkpoints.values():
            _add_needed(needed, archive.tree, part, checkpoint.cursor)
    for span in archive.tree.spans():
        if span.id not in needed:
            archive.drop_rows(span)


def _add_needed(needed: set[int], tree: SegmentTree, part: MemoryPart, cursor: Cursor) -> None:
    """Add the ids of the spans that going on from a cursor needs."""
    hi = tree.n_tokens(cursor)
    lo = part.first_row(hi)
    for run in tree.runs_up(cursor):
        ids = {span.id for span in tree.rows(run, part.kind, lo, hi)}
        if run.end <= lo or (part.rewindable and ids and ids <= needed):
            return  # whoever needed these rows needed all those before
        needed |= ids
