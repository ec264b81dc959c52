"""Slot files that somebody made up: any column of any record with any value, and checksums that are right.

What can be forged is taken from the schema, so that new columns are forged from the day on which they are there.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.slot.file.schema import TABLES, TOTALS_ID, checksum

DEEP = "[" * 100_000 + "]" * 100_000
NUMBERS = (-(1 << 63), -1, 0, 1, 2, 3, 1 << 20, 1 << 31, (1 << 53) + 1, (1 << 63) - 1)
FLOATS = (-1.0, 0.5, 1e300, float("inf"), float("-inf"), 253402300800.0)
TEXTS = (
    *("", "pwned", "\0", "a\nb", "../../x", "x" * 5_000, "<img src=x>", "☃" * 700),
    *("null", "[]", "3", '"x"', "{}", '{"a": NaN}', '{"a": 1e999}', '"\\ud800"', '{"count": "x"}', '{"n": {}}', DEEP),
)
BLOBS = (
    b"",
    b"abc",
    bytes(16),
    *(struct.pack("<i", id) * 20 for id in (-1, 1_000_000, 0x7FFFFFFF)),
    *(struct.pack("<f", number) * 32 for number in (float("nan"), float("inf"), 3e38)),
    b"\xff" * 50_000,
)
VALUES: tuple[Any, ...] = (None, *NUMBERS, *FLOATS, *TEXTS, *BLOBS)
IDS = tuple(value for value in NUMBERS)


@dataclass(frozen=True)
class Change:
    """The value that a column of a table gets, in the record with this number from the first (or, negative, last)."""

    table: str
    record: int
    column: str
    value: Any

    def __str__(self) -> str:
        value = repr(self.value)
        return f"{self.table}[{self.record}].{self.column} = {value[:40]}{'...' * (len(value) > 40)}"


def changes() -> Iterator[Change]:
    """Yield every value in every column, in the last record of each table."""
    for name, table in TABLES.items():
        for column in ("id", *table.columns, *table.payload):
            for value in IDS if column == "id" else VALUES:
                yield Change(name, -1, column, value)


class Forger:
    """Forges copies of one slot file."""

    def __init__(self, genuine: Path) -> None:
        """Take the file apart: in `_loose` its tables accept what the declared types would not."""
        loose = genuine.with_name("loose.db")
        loose.write_bytes(genuine.read_bytes())
        with closing(sqlite3.connect(loose, isolation_level=None)) as file:
            self._schema = dict(file.execute("SELECT name, sql FROM sqlite_schema").fetchall())
            self._columns = {
                table: [column[1] for column in file.execute(f"PRAGMA table_info({table})")] for table in self._schema
            }
            _write_schema(file, {t: f"CREATE TABLE {t} ({_untyped(names)})" for t, names in self._columns.items()})
        self._loose = loose.read_bytes()
        loose.unlink()

    def forge(self, path: Path, *changed: Change) -> bool:
        """Write a copy with changes to `path`; tell whether they could be made: two records can't have one id."""
        path.write_bytes(self._loose)
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous=OFF")
            file.execute("BEGIN")
            try:
                for change in changed:
                    self._change(file, change)
            except sqlite3.IntegrityError:
                return False
            if all(change.table != "totals" for change in changed):
                self._set_totals(file)
            file.execute("COMMIT")
            _write_schema(file, self._schema)
        return True

    def _change(self, file: sqlite3.Connection, change: Change) -> None:
        order = "DESC" if change.record < 0 else "ASC"
        offset = -change.record - 1 if change.record < 0 else change.record
        sql = f"SELECT id FROM {change.table} ORDER BY id {order} LIMIT 1 OFFSET ?"
        found = file.execute(sql, (offset,)).fetchone()
        if found is None:
            return
        file.execute(f"UPDATE {change.table} SET {change.column} = ? WHERE id = ?", (change.value, found[0]))
        self._sign(file, change.table, change.value if change.column == "id" else found[0])

    def _sign(self, file: sqlite3.Connection, table: str, id: int) -> None:
        """Make the checksums of a record right."""
        found = file.execute(f"SELECT * FROM {table} WHERE id = ?", (id,)).fetchone()
        record = dict(zip(self._columns[table], found, strict=True))
        payload = {name: record.pop(name) for name in TABLES[table].payload}
        if payload:
            record["payload_xxh3"] = checksum(table, payload)
            file.execute(f"UPDATE {table} SET payload_xxh3 = ? WHERE id = ?", (record["payload_xxh3"], id))
        file.execute(f"UPDATE {table} SET xxh3 = ? WHERE id = ?", (checksum(table, record), id))

    def _set_totals(self, file: sqlite3.Connection) -> None:
        """Make the totals right."""
        totals = []
        for table in self._schema.keys() - {"totals"}:
            records = file.execute(f"SELECT id, xxh3 FROM {table}").fetchall()
            xor = 0
            for _, xxh3 in records:
                xor ^= xxh3
            last_id = max((id for id, _ in records), default=0)
            totals.append(f'"{table}": {{"count": {len(records)}, "last_id": {last_id}, "xor": {xor}}}')
        text = "{" + ", ".join(totals) + "}"
        file.execute("UPDATE totals SET value = ?", (text,))
        self._sign(file, "totals", TOTALS_ID)


def _untyped(names: list[str]) -> str:
    return ", ".join("id INTEGER PRIMARY KEY" if name == "id" else name for name in names)


def _write_schema(file: sqlite3.Connection, schema: dict[str, str]) -> None:
    file.execute("PRAGMA writable_schema=ON")
    for table, sql in schema.items():
        file.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, table))
    file.execute("PRAGMA writable_schema=RESET")
