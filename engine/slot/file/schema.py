"""The tables of a slot file, and the checksum of their records.

A slot file is an SQLite database with application id `Dorm`. Every table has the columns `id` and `xxh3`, a
checksum over all other columns of the row, so that a flipped letter is seen. Large columns (the payload) come last
and are covered through `payload_xxh3`, so that a row can be checked without reading them.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import xxhash

from engine.slot.file import kinds
from engine.slot.file.kinds import CHECKSUM, ID, Kind

APPLICATION_ID = int.from_bytes(b"Dorm", "big")
PAGE_SIZE = 16384
TOTALS_ID = 1
SCHEMA_SQL = "SELECT type, name, tbl_name, sql FROM sqlite_schema"

Schema: TypeAlias = frozenset[tuple[str, str, str, str]]

Value: TypeAlias = int | float | str | bytes | memoryview | None


@dataclass(frozen=True)
class Table:
    """A table of the slot file: what the values of its columns are, beside `id` and the checksums.

    It came with the layout `since`; `added` tells which columns came later.
    """

    name: str
    columns: Mapping[str, Kind]
    payload: Mapping[str, Kind] = field(default_factory=dict)
    since: int = 1
    added: Mapping[str, int] = field(default_factory=dict)

    def names(self, layout: int) -> list[str]:
        """Return the columns that files of a layout have, without `id` and the payload."""
        columns = [name for name in self.columns if self.added.get(name, self.since) <= layout]
        return [*columns, *(["payload_xxh3"] if self.payload else []), "xxh3"]

    def create_sql(self, layout: int) -> str:
        """Return the statement by which the writers of a layout created the table."""
        known = {**self.columns, "payload_xxh3": CHECKSUM, "xxh3": CHECKSUM}
        columns = {"id": "INTEGER PRIMARY KEY"} | {name: known[name].sql for name in self.names(layout)}
        columns |= {name: kind.sql for name, kind in self.payload.items()}
        definitions = ", ".join(f"{name} {declared}" for name, declared in columns.items())
        return f'CREATE TABLE "{self.name}" ({definitions}) STRICT'

    def upgrade_sql(self, layout: int) -> Iterator[str]:
        """Yield the statements that bring the table from the layout before to this one."""
        if self.since == layout:
            yield self.create_sql(layout)
        for name, since in self.added.items():
            if since == layout:
                yield f'ALTER TABLE "{self.name}" ADD COLUMN {name} {self.columns[name].sql}'

    def coerced(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values as SQLite will give them back: the checksum depends on their types."""
        return {name: self._coerced(name, value) for name, value in values.items()}

    def _coerced(self, name: str, value: Value) -> Value:
        if value is None or isinstance(value, str | bytes | memoryview):
            return value
        return float(value) if name in self.columns and self.columns[name].type is float else int(value)

    def is_valid(self, values: Mapping[str, object]) -> bool:
        """Tell whether the id and all columns of a record are what they may be."""
        return ID.is_valid(values["id"]) and all(kind.is_valid(values.get(n)) for n, kind in self.columns.items())

    def is_valid_payload(self, payload: Mapping[str, object]) -> bool:
        """Tell whether the payload of a record is what it may be."""
        return all(kind.is_valid(payload.get(name)) for name, kind in self.payload.items())


TABLES = {
    table.name: table
    for table in (
        Table("totals", {"value": kinds.JSON_OBJECT}),  # one record: what each other table should hold
        Table("manifest", {"key": kinds.NAME, "value": kinds.JSON}),
        Table(
            "message",
            {
                "parent": kinds.ID_OR_NONE,
                "role": kinds.ROLE,
                "text": kinds.TEXT,
                "created": kinds.TIME,
                "finish_reason": kinds.FINISH_REASON,
                "damaged": kinds.MARK,  # where a repair took the text from a record that failed its checksum
            },
            added={"damaged": 3},
        ),
        Table("content", {"message": ID, "tokenizer": kinds.NAME, "token_ids": kinds.TOKEN_IDS}),
        Table(
            "model",
            {
                "fingerprint": kinds.NAME,
                "architecture": kinds.NAME,
                "name": kinds.NAME,
                "path": kinds.PATH,
                "tokenizer": kinds.NAME,
                "template": kinds.NAME,
                "kv_type": kinds.NAME,
                "kernels": kinds.NAME,
                "config": kinds.JSON_OBJECT,
            },
        ),
        Table(
            "segment",
            {
                "model": ID,
                "parent": kinds.ID_OR_NONE,
                "parent_length": kinds.COUNT,
                "token_ids": kinds.TOKEN_IDS,
                "digest": kinds.DIGEST,
            },
        ),
        Table(
            "rows",
            {
                "segment": ID,
                "role": kinds.TARGET,  # there are no rows of draft models yet
                "part": kinds.NAME,
                "lo": kinds.COUNT,
                "hi": kinds.COUNT,
                "nbytes": kinds.COUNT,
            },
            payload={"data": kinds.DATA},
        ),
        Table(
            "checkpoint",
            {
                "segment": ID,
                "length": kinds.COUNT,
                "message": kinds.ID_OR_NONE,
                "reason": kinds.CHECKPOINT_REASON,
                "created": kinds.TIME,
                "has_states": kinds.FLAG,
                "nbytes": kinds.COUNT,
            },
            payload={"hidden": kinds.FLOATS, "next_tokens": kinds.DATA, "states": kinds.DATA_OR_NONE},
        ),
        # who computed the record of this id in `rows` or `checkpoint`, where it would stand behind the payload
        Table("mark", {"mac": kinds.MAC}, since=4),
        Table(
            "receipt",
            {
                "message": ID,
                "model": ID,
                "prompt_n": kinds.COUNT,
                "cache_n": kinds.COUNT,
                "source": kinds.SOURCE,
                "reason": kinds.REASON,
                "prompt_ms": kinds.DURATION,
                "predicted_n": kinds.COUNT,
                "predicted_ms": kinds.DURATION,
                "kernels": kinds.NAME,
                "created": kinds.TIME,
                "donor": kinds.NAME_OR_NONE,
            },
            added={"donor": 2},
        ),
        Table("log", {"created": kinds.TIME, "event": kinds.NAME, "detail": kinds.JSON_OBJECT}),
    )
}


def layout_version() -> int:
    """Return the layout (SQLite's `user_version`) that this version of Dormouse writes; see `upgrades`."""
    return 4


def creation() -> Iterator[str]:
    """Yield the statements that set up an empty slot file."""
    yield from _tables_sql(layout_version())
    yield f"PRAGMA application_id={APPLICATION_ID}"
    yield f"PRAGMA user_version={layout_version()}"
    totals: dict[str, Value] = {"id": TOTALS_ID, "value": "{}"}
    yield f"INSERT INTO totals VALUES ({TOTALS_ID}, '{{}}', {checksum('totals', totals)})"


def _tables_sql(layout: int) -> Iterator[str]:
    return (table.create_sql(layout) for table in TABLES.values() if table.since <= layout)


def upgrade_sql(layout: int) -> Iterator[str]:
    """Yield the statements that bring the tables from the layout before to this one."""
    for table in TABLES.values():
        yield from table.upgrade_sql(layout)


@cache
def known_schemas(layout: int) -> frozenset[Schema]:
    """Return what may stand in the list of tables of a file of a layout, text by text.

    There is one for each older layout that such a file may have begun with: SQLite keeps the text of each statement,
    and a column that was added later stands last.
    """
    return frozenset(_grown(first, layout) for first in range(1, layout + 1))


def _grown(first: int, last: int) -> Schema:
    """Return the list of tables of a file that was created in one layout and upgraded to another."""
    with closing(sqlite3.connect(":memory:")) as file:
        for statement in _tables_sql(first):
            file.execute(statement)
        for layout in range(first + 1, last + 1):
            for statement in upgrade_sql(layout):
                file.execute(statement)
        return frozenset(file.execute(SCHEMA_SQL))


def checksum(table: str, values: Mapping[str, Value]) -> int:
    """Return the xxh3-64 of a row's columns as SQLite's signed integer.

    Hashed are the table's name and a space; then, in the order of their names, all columns that are not NULL
    except `xxh3`, each as 'name tag length ' and its bytes: tags i and f for 64-bit little-endian integers and
    floats, t for UTF-8, b for blobs.
    """
    digest = xxhash.xxh3_64(f"{table} ".encode())
    for name in sorted(values):
        value = values[name]
        if value is None or name == "xxh3":
            continue
        tag, data = _encode(value)
        digest.update(f"{name} {tag} {len(data)} ".encode())
        digest.update(data)
    return int.from_bytes(digest.digest(), "big", signed=True)


def _encode(value: int | float | str | bytes | memoryview) -> tuple[str, bytes | memoryview]:
    match value:
        case int():
            return "i", struct.pack("<q", value)
        case float():
            return "f", struct.pack("<d", value + 0.0)  # SQLite stores -0.0 as 0.0
        case str():
            return "t", value.encode()
        case bytes():
            return "b", value
        case memoryview():
            return "b", value.cast("B")
