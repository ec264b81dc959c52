"""Records with checksums, and totals that give away what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import count
from typing import Any

from engine.slot.file.connection import Connection
from engine.slot.file.failures import DamagedError
from engine.slot.file.kinds import COUNT, ID, MAX_ID
from engine.slot.file.schema import TABLES, TOTALS_ID, Value, checksum

_MAX_MISSES = 5_000  # in a row, after which there is nothing more to be found
_MAX_RECORDS = 200_000  # of a table; no conversation comes near
_MAX_REPEATS = 10_000  # records that are met again because a page is linked twice, or in a circle


@dataclass(frozen=True)
class RawRecord:
    """A record (a row of a table, in SQL's words) without its payload.

    `intact` says that its checksum is right and its values are what they may be.
    """

    id: int
    values: Mapping[str, Any]
    intact: bool

    @property
    def xxh3(self) -> int:
        """The checksum that is stored with the row."""
        stored = self.values.get("xxh3")
        return stored if isinstance(stored, int) else 0


@dataclass(frozen=True)
class Scan:
    """The records of a table that could be read, by ascending id; `whole` says that none is missing or outdated."""

    records: list[RawRecord]
    whole: bool


@dataclass(frozen=True)
class Total:
    """What a table should hold; `xor` is that of the checksums of its records. Ids up to `last_id` are used up."""

    count: int = 0
    last_id: int = 0
    xor: int = 0

    def plus(self, id: int, xxh3: int) -> Total:
        """Return the total with one more row. An id that can't be, which damage makes, uses up no others."""
        last_id = max(self.last_id, id) if ID.is_valid(id) else self.last_id
        return Total(self.count + 1, last_id, self.xor ^ xxh3)

    def minus(self, xxh3: int) -> Total:
        """Return the total with one row less."""
        return Total(self.count - 1, self.last_id, self.xor ^ xxh3)


class RecordStore:
    """Reads and writes the records of the tables in `schema.TABLES`."""

    def __init__(self, connection: Connection) -> None:
        self.bytes_written = 0  # of all records in committed transactions
        self._connection = connection
        layout = connection.layout  # an earlier one where the file is opened for reading only
        self._columns = {name: table.names(layout) for name, table in TABLES.items() if table.since <= layout}
        self._totals = self._read_totals()

    def scan(self, table: str) -> Scan:
        """Read all records of a table without their payload, around what can't be read."""
        rows: list[RawRecord] = []
        n_repeated, nbytes, most = 0, 0, self._connection.nbytes
        whole = True
        try:
            for row in self.select(table, "ORDER BY id"):
                if not rows or row.id > rows[-1].id:
                    rows.append(row)
                    nbytes += sum(_nbytes(value) for value in row.values.values() if isinstance(value, str | bytes))
                else:
                    whole = False
                    n_repeated += 1
                if n_repeated > _MAX_REPEATS or nbytes > most or len(rows) > _MAX_RECORDS:
                    whole = False  # values that share their pages would fill any memory
                    break
        except DamagedError:
            whole = False
            rows += self._probe(table, rows[-1].id + 1 if rows else 1)
        return Scan(rows, whole and self._adds_up(table, rows))

    def select(self, table: str, clause: str, parameters: tuple[Value, ...] = ()) -> Iterator[RawRecord]:
        """Yield the records of a table that fit an SQL clause, without their payload."""
        if table not in self._columns:
            return
        names = self._columns[table]
        columns = ", ".join(f'"{name}"' for name in names)
        for found in self._connection.query(f'SELECT id, {columns} FROM "{table}" {clause}', parameters):
            # files of earlier layouts have no values for some columns
            values = dict.fromkeys(TABLES[table].columns) | dict(zip(["id", *names], found, strict=True))
            intact = TABLES[table].is_valid(values) and checksum(table, values) == values.get("xxh3")
            yield RawRecord(found[0], values, intact)

    def read(self, table: str, id: int) -> RawRecord | None:
        """Read one row without its payload, None if there is none."""
        return next(self.select(table, "WHERE id = ?", (id,)), None)

    def read_payload(self, table: str, id: int) -> dict[str, Any] | None:
        """Read the payload of one row, None unless row and payload are intact."""
        row = self.read(table, id)
        if row is None or not row.intact:
            return None
        names = list(TABLES[table].payload)
        found = next(self._connection.query(f'SELECT {", ".join(names)} FROM "{table}" WHERE id = ?', (id,)))
        payload = dict(zip(names, found, strict=True))
        is_right = (
            TABLES[table].is_valid_payload(payload)
            and sum(map(_nbytes, filter(None, payload.values()))) == row.values["nbytes"]
            and checksum(table, payload) == row.values["payload_xxh3"]
        )
        return payload if is_right else None

    def insert(
        self,
        table: str,
        values: Mapping[str, Value],
        *,
        payload: Mapping[str, Value] | None = None,
    ) -> int:
        """Insert a record, under the next free id unless `values` has one, and return its id."""
        row: dict[str, Any] = TABLES[table].coerced({"id": self.next_id(table), **values})
        if payload:
            row["payload_xxh3"] = checksum(table, payload)
        row["xxh3"] = checksum(table, row)
        columns = row | dict(payload or {})
        with self.transaction():
            sql = f'INSERT INTO "{table}" ({", ".join(columns)}) VALUES ({", ".join("?" * len(columns))})'
            self._connection.execute(sql, tuple(columns.values()))
            self._set_total(table, self._total(table).plus(row["id"], row["xxh3"]))
            self.bytes_written += sum(map(_nbytes, columns.values()))
        return int(row["id"])

    def update(self, table: str, id: int, changes: Mapping[str, Value]) -> None:
        """Change columns of a row; raises `DamagedError` unless it is there and intact."""
        row = self.read(table, id)
        if row is None or not row.intact:
            raise DamagedError(f"{self._connection.name} is damaged: what should be changed can't be read.")
        changed = {**row.values, **TABLES[table].coerced(changes)}
        changed["xxh3"] = checksum(table, changed)
        names = [*changes, "xxh3"]
        with self.transaction():
            sql = f'UPDATE "{table}" SET {", ".join(f"{name} = ?" for name in names)} WHERE id = ?'
            self._connection.execute(sql, (*(changed[name] for name in names), id))
            self._set_total(table, self._total(table).minus(row.xxh3).plus(id, changed["xxh3"]))
            self.bytes_written += sum(_nbytes(changed[name]) for name in names)

    def delete(self, table: str, id: int) -> None:
        """Delete a row if it is there."""
        with self.transaction():
            row = self.read(table, id)
            if row is not None:
                self._connection.execute(f'DELETE FROM "{table}" WHERE id = ?', (id,))
                self._set_total(table, self._total(table).minus(row.xxh3))

    def recount(self, table: str) -> None:
        """Make what a table holds now what it should hold."""
        with self.transaction():
            total = Total(last_id=self._total(table).last_id)
            for row in self.select(table, "ORDER BY id"):
                total = total.plus(row.id, row.xxh3)
            self._set_total(table, total)

    def next_id(self, table: str) -> int:
        """Return an id above all that were ever used in a table."""
        return self._total(table).last_id + 1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything done inside at once, or nothing of it; an inner transaction joins the outer one."""
        if self._connection.in_transaction:
            yield
            return
        before = self._totals, self.bytes_written
        try:
            with self._connection.transaction():
                yield
                if self._totals != before[0]:
                    self.write_totals()
        except BaseException:
            self._totals, self.bytes_written = before
            raise

    def _probe(self, table: str, first: int) -> list[RawRecord]:
        """Read the records from id `first` on one by one."""
        rows: list[RawRecord] = []
        ids = count(first) if self._totals is None else range(first, self._total(table).last_id + 1)
        misses = 0
        for id in ids:
            try:
                row = self.read(table, id)
            except DamagedError:
                row = None
            misses = 0 if row else misses + 1
            if row:
                rows.append(row)
            elif misses == _MAX_MISSES:
                break
        return rows

    def _adds_up(self, table: str, rows: list[RawRecord]) -> bool:
        if self._totals is None:
            return False
        total, found = self._total(table), Total()
        for row in rows:
            found = found.plus(row.id, row.xxh3)
        # where a row is damaged anyway, its checksum may be what is wrong
        return found.count == total.count and (found.xor == total.xor or not all(row.intact for row in rows))

    def _total(self, table: str) -> Total:
        if self._totals is None:
            raise DamagedError(f"{self._connection.name} is damaged: it does not say how much it should hold.")
        return self._totals.get(table, Total())

    def _set_total(self, table: str, total: Total) -> None:
        self._totals = {**(self._totals or {}), table: total}

    def _read_totals(self) -> dict[str, Total] | None:
        try:
            row = self.read("totals", TOTALS_ID)
            if row is None or not row.intact:
                return None
            totals = json.loads(row.values["value"])
            return {table: _total_from(totals[table]) for table in TABLES.keys() & totals.keys()}
        except (DamagedError, ValueError):
            return None

    def write_totals(self) -> None:
        """Write what the tables should hold: done at the end of a transaction, unless that is somebody else's."""
        totals = {table: asdict(total) for table, total in (self._totals or {}).items()}
        row: dict[str, Value] = {"id": TOTALS_ID, "value": json.dumps(totals)}
        sql = "UPDATE totals SET value = ?, xxh3 = ? WHERE id = ?"
        self._connection.execute(sql, (row["value"], checksum("totals", row), TOTALS_ID))


def _total_from(stored: Any) -> Total:
    """Build what a table should hold; raise ValueError where that can't be."""
    names = [field.name for field in fields(Total)]
    if not isinstance(stored, dict) or not all(type(stored.get(name)) is int for name in names):
        raise ValueError("this is no total")
    total = Total(*(stored[name] for name in names))
    if not (COUNT.is_valid(total.count) and 0 <= total.last_id <= MAX_ID and -(1 << 63) <= total.xor < 1 << 63):
        raise ValueError("no table holds that")
    return total


def _nbytes(value: Value) -> int:
    match value:
        case str():
            return len(value.encode())
        case bytes():
            return len(value)
        case memoryview():
            return value.nbytes
    return 8
