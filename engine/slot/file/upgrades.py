"""The steps from older layouts of a slot file to the present one, each done once, as a whole or not at all.

A column added without a default leaves the checksums of existing records valid, because NULL columns are no part of
them.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from engine.slot.file import schema
from engine.slot.file.connection import Connection
from engine.slot.file.record_store import RecordStore

OLDER_VERSION = "older_version"
"""Why state was put aside by an upgrade, as the log says it."""
FIRST_WITH_CUT_ROWS = 3
"""The first layout whose writers cut rows at forks: see `behind_forks`."""

_ID = struct.Struct("<i")
_READ_AGAIN = (
    "An older version of Dormouse may have mixed up what the model remembered of this conversation after an edit: "
    "that was put aside, and the model reads those parts again, once. No text is lost."
)


def upgrade(connection: Connection) -> list[str]:
    """Bring a file of an older layout to the present one; return what the person should know of it, in sentences."""
    told: list[str] = []
    with connection.transaction():
        for layout in range(connection.layout + 1, schema.layout_version() + 1):
            for statement in schema.upgrade_sql(layout):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={layout}")
            if layout in _STEPS:
                told += _STEPS[layout](connection)
    return told


def behind_forks(segments: Mapping[int, Mapping[str, Any]], *, borrowed: bool) -> set[int]:
    """Return the ids of the segments whose state may be wrong in files of layouts before 3.

    `segments` are the columns of their records by id, parents first. Where a path left a segment inside a run of rows
    that are stored together, those versions took the other branch's rows for the new one's first ones, and computed
    what followed on them. With `borrowed` state, which has the same fault without the fork, it may be any.
    """
    suspects: set[int] = set()
    for id, values in segments.items():
        parent = values["parent"]
        forks_inside = parent in segments and _ID.size * values["parent_length"] < len(segments[parent]["token_ids"])
        if borrowed or forks_inside or parent in suspects:
            suspects.add(id)
    return suspects


def _cut_rows_at_forks(connection: Connection) -> list[str]:
    """Put aside state that may have been computed on wrong rows."""
    records = RecordStore(connection)
    segments = {row.id: row.values for row in records.scan("segment").records if row.intact}
    borrowed = any(row.intact and row.values["donor"] for row in records.scan("receipt").records)
    suspects = behind_forks(segments, borrowed=borrowed)
    if not suspects:
        return []
    for table in ("rows", "checkpoint"):
        for row in records.scan(table).records:
            if row.intact and row.values["segment"] in suspects:
                records.delete(table, row.id)
    for id in sorted(suspects, reverse=True):
        records.delete("segment", id)
    detail = json.dumps({"n_segments": len(suspects), "reason": OLDER_VERSION})
    records.insert("log", {"created": time.time(), "event": "put_aside", "detail": detail})
    records.write_totals()
    return [_READ_AGAIN]


_STEPS: Mapping[int, Callable[[Connection], list[str]]] = {FIRST_WITH_CUT_ROWS: _cut_rows_at_forks}
"""What has to be done to the records for a layout, when its columns are there."""
