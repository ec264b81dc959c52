"""What all typed access to the tables of a slot file shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from engine.slot.file import mapping
from engine.slot.file.connection import Connection
from engine.slot.file.record_store import RawRecord, RecordStore

T = TypeVar("T")

_WHAT = {
    "manifest": "facts about the conversation",
    "content": "token ids of messages",
    "model": "model identities",
    "segment": "token runs",
    "rows": "memory rows",
    "checkpoint": "context checkpoints",
    "mark": "marks of origin",
    "receipt": "receipts",
    "log": "log entries",
}


class Tables:
    """An open slot file; keeps note of what beside the transcript turned out to be damaged."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw = RecordStore(connection)
        self._damaged: set[str] = set()

    @property
    def name(self) -> str:
        """How sentences call this file."""
        return self._connection.name

    @property
    def writable(self) -> bool:
        """Whether the file may be written."""
        return self._connection.writable

    @property
    def state_damage(self) -> list[str]:
        """What beside the transcript turned out to be damaged so far, in sentences."""
        return [f"Some of the stored {_WHAT[table]} are damaged or missing." for table in sorted(self._damaged)]

    @property
    def bytes_written(self) -> int:
        """Bytes of all rows written since the file was opened, without SQLite's own."""
        return self._raw.bytes_written

    def transaction(self) -> AbstractContextManager[None]:
        """Commit everything done inside at once, or nothing of it."""
        return self._raw.transaction()

    def _records(
        self,
        table: str,
        build: Callable[[mapping.Values], T],
        *,
        but: Callable[[mapping.Values], bool] = lambda _: False,
    ) -> list[T]:
        records = []
        for values in self._intact(table):
            if but(values):
                continue
            try:
                records.append(build(values))
            except ValueError:
                self._damaged.add(table)
        return records

    def _intact(self, table: str) -> Iterator[mapping.Values]:
        return (row.values for row in self._note_damage(table) if row.intact)

    def _note_damage(self, table: str) -> list[RawRecord]:
        """Return the records of a table; note if some are missing or not intact."""
        scan = self._raw.scan(table)
        if not scan.whole or not all(row.intact for row in scan.records):
            self._damaged.add(table)
        return scan.records
