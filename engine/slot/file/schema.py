"""The tables of a slot file, and the checksum of their records.

A slot file is an SQLite database with application id `Dorm`. Every table has the columns `id` and `xxh3`, a
checksum over all other columns of the row, so that a flipped letter is seen. Large columns (the payload) come last
and are covered through `payload_xxh3`, so that a row can be checked without reading them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import xxhash

APPLICATION_ID = int.from_bytes(b"Dorm", "big")
PAGE_SIZE = 16384
TOTALS_ID = 1

Value: TypeAlias = int | float | str | bytes | memoryview | None

_PYTHON_TYPES = {"INTEGER": int, "REAL": float, "TEXT": str, "BLOB": bytes}


@dataclass(frozen=True)
class Table:
    """A table of the slot file: its columns beside `id` and the checksums, each with its SQL type."""

    name: str
    columns: Mapping[str, str]
    payload: Mapping[str, str] = field(default_factory=dict)

    def create_sql(self) -> str:
        """Return the statement that creates the table."""
        columns = {"id": "INTEGER PRIMARY KEY", **self.columns}
        if self.payload:
            columns["payload_xxh3"] = "INTEGER NOT NULL"
        columns |= {"xxh3": "INTEGER NOT NULL", **self.payload}
        definitions = ", ".join(f"{name} {declared}" for name, declared in columns.items())
        return f'CREATE TABLE "{self.name}" ({definitions}) STRICT'

    def coerced(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values as SQLite will give them back: the checksum depends on their types."""
        return {name: self._coerced(name, value) for name, value in values.items()}

    def _coerced(self, name: str, value: Value) -> Value:
        declared = self.columns.get(name, "")
        if value is None or isinstance(value, str | bytes | memoryview):
            return value
        return float(value) if declared.startswith("REAL") else int(value)

    def has_valid_types(self, values: Mapping[str, object]) -> bool:
        """Tell whether every declared column is there and of its declared type."""
        return all(type(values.get(name)) in types for name, types in self._types)

    @cached_property
    def _types(self) -> list[tuple[str, tuple[type, ...]]]:
        types: list[tuple[str, tuple[type, ...]]] = []
        for name, declared in self.columns.items():
            kind = _PYTHON_TYPES[declared.split()[0]]
            types.append((name, (kind,) if "NOT NULL" in declared else (kind, type(None))))
        return types


TABLES = {
    table.name: table
    for table in (
        Table("totals", {"value": "TEXT NOT NULL"}),  # one row: what each other table should hold, as JSON
        Table("manifest", {"key": "TEXT NOT NULL", "value": "TEXT NOT NULL"}),
        Table(
            "message",
            {
                "parent": "INTEGER",
                "role": "TEXT NOT NULL",
                "text": "TEXT NOT NULL",
                "created": "REAL NOT NULL",
                "finish_reason": "TEXT",
                "damaged": "INTEGER",  # 1 where a repair took the text from a record that failed its checksum
            },
        ),
        Table(
            "content",
            {"message": "INTEGER NOT NULL", "tokenizer": "TEXT NOT NULL", "token_ids": "BLOB NOT NULL"},
        ),
        Table(
            "model",
            {
                "fingerprint": "TEXT NOT NULL",
                "architecture": "TEXT NOT NULL",
                "name": "TEXT NOT NULL",
                "path": "TEXT NOT NULL",
                "tokenizer": "TEXT NOT NULL",
                "template": "TEXT NOT NULL",
                "kv_type": "TEXT NOT NULL",
                "kernels": "TEXT NOT NULL",
                "config": "TEXT NOT NULL",
            },
        ),
        Table(
            "segment",
            {
                "model": "INTEGER NOT NULL",
                "parent": "INTEGER",
                "parent_length": "INTEGER NOT NULL",
                "token_ids": "BLOB NOT NULL",
                "digest": "BLOB NOT NULL",
            },
        ),
        Table(
            "rows",
            {
                "segment": "INTEGER NOT NULL",
                "role": "TEXT NOT NULL",
                "part": "TEXT NOT NULL",
                "lo": "INTEGER NOT NULL",
                "hi": "INTEGER NOT NULL",
                "nbytes": "INTEGER NOT NULL",
            },
            payload={"data": "BLOB NOT NULL"},
        ),
        Table(
            "checkpoint",
            {
                "segment": "INTEGER NOT NULL",
                "length": "INTEGER NOT NULL",
                "message": "INTEGER",
                "reason": "TEXT NOT NULL",
                "created": "REAL NOT NULL",
                "has_states": "INTEGER NOT NULL",
                "nbytes": "INTEGER NOT NULL",
            },
            payload={"hidden": "BLOB NOT NULL", "next_tokens": "BLOB NOT NULL", "states": "BLOB"},
        ),
        Table(
            "receipt",
            {
                "message": "INTEGER NOT NULL",
                "model": "INTEGER NOT NULL",
                "prompt_n": "INTEGER NOT NULL",
                "cache_n": "INTEGER NOT NULL",
                "source": "TEXT NOT NULL",
                "reason": "TEXT NOT NULL",
                "prompt_ms": "REAL NOT NULL",
                "predicted_n": "INTEGER NOT NULL",
                "predicted_ms": "REAL NOT NULL",
                "kernels": "TEXT NOT NULL",
                "created": "REAL NOT NULL",
                "donor": "TEXT",
            },
        ),
        Table("log", {"created": "REAL NOT NULL", "event": "TEXT NOT NULL", "detail": "TEXT NOT NULL"}),
    )
}


def layout_version() -> int:
    """Return the layout (SQLite's `user_version`) that this version of Dormouse writes; see `upgrades`."""
    return 3


def creation() -> Iterator[str]:
    """Yield the statements that set up an empty slot file."""
    for table in TABLES.values():
        yield table.create_sql()
    yield f"PRAGMA application_id={APPLICATION_ID}"
    yield f"PRAGMA user_version={layout_version()}"
    totals: dict[str, Value] = {"id": TOTALS_ID, "value": "{}"}
    yield f"INSERT INTO totals VALUES ({TOTALS_ID}, '{{}}', {checksum('totals', totals)})"


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
