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


def prune(archive: Archive, parts: Sequence[MemoryPart], *, live: Cursor, budget: int, rewindable: bool) -> None:
    """Drop checkpoints, and rows that no checkpoint refers to, until the rest has at most `budget` bytes.

    `live` is where the conversation stands: there is a checkpoint, which stays.
    """
    if archive.nbytes <= budget:
        return
    places = dict(_places(archive))
    retention = Retention(
        list(places.values()),
        [RowCost(part.row_nbytes, _FAR - part.first_row(_FAR)) for part in parts],
        live=next(c.id for c in archive.checkpoints.values() if c.cursor == live),
        rewindable=rewindable,
    )
    _drop_rows(archive, parts)
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
            _drop_rows(archive, parts)
    archive.shrink()


def _places(archive: Archive) -> Iterator[tuple[int, Place]]:
    """Yield the checkpoints, those given up as well, and the forks between them, by id, parents before children."""
    tree = archive.tree
    fork_ids = count(-1, -1)
    ids: dict[Cursor, int] = {cursor: next(fork_ids) for cursor in _forks(tree)}
    known = {c.id: c for c in (*archive.given_up.values(), *archive.checkpoints.values())}
    ids |= {c.cursor: c.id for c in known.values()}
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


def _drop_rows(archive: Archive, parts: Sequence[MemoryPart]) -> None:
    """Drop the rows that no checkpoint refers to."""
    needed: set[int] = set()
    for part in parts:
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
