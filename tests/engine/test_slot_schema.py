"""The list of tables of a slot file is ours, text by text, or the file is not opened and nothing in it is run."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SlotFileError
from engine.slot.file import schema
from engine.slot.file.connection import Connection
from engine.slot.file.failures import DamagedError
from engine.slot.file.repair import open_repaired, repair
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify

ENDLESS = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n)"
LARGE = "hex(zeroblob(100000000))"
STATEMENTS = [
    "CREATE VIEW v AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON message BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE words USING fts4(x)",
    "CREATE  VIRTUAL TABLE words USING fts4(x)",
    "CREATE/**/VIRTUAL TABLE words USING fts4(x)",
    "DROP TABLE log; CREATE VIRTUAL TABLE log USING fts4(created, event, detail)",
    f"CREATE TABLE checked (id INTEGER PRIMARY KEY CHECK (length({LARGE}) > id))",
    f"CREATE INDEX computed ON message (length({LARGE}))",
    "CREATE INDEX plain ON message (role)",
    f"CREATE TABLE made (id INTEGER PRIMARY KEY, x AS (length({LARGE})))",
    f'CREATE TABLE "a"", ""b" ("x""||{LARGE}||""" TEXT)',
    "DROP TABLE log; CREATE TABLE log (id TEXT PRIMARY KEY, created, event, detail, xxh3)",
    "ALTER TABLE message ADD COLUMN mood TEXT",
    "ALTER TABLE message RENAME COLUMN text TO texts",
    "DROP TABLE log",
    "ANALYZE",
]


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file behind Dormouse's back, free to write into its list of tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        yield connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chat.slot"
    with SlotFile.create(path) as slot_file:
        slot_file.add_message(None, "user", "Hello", created=1)
    return path


def check_refused(path: Path) -> None:
    """Try to open a file in every way there is; what is in it must stay as it is."""
    before = path.read_bytes()
    for use in (SlotFile.open, open_repaired, repair, verify, lambda path: SlotFile.open(path, read_only=True)):
        try:
            found = use(path)
        except SlotFileError as refused:
            sentence = str(refused)
        else:
            assert use is verify
            (sentence,) = found
        assert sentence.endswith(".")
        assert "holds something that no slot file has" in sentence or "list of tables is not what it" in sentence
    assert path.read_bytes() == before
    assert list(path.parent.glob("chat*")) == [path]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_other_tables_are_refused(path: Path, statement: str) -> None:
    with raw(path) as connection:
        connection.executescript(statement)
    check_refused(path)


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [
        ("message", "text TEXT NOT NULL", f"text TEXT NOT NULL CHECK (length({LARGE}) > 0)"),
        ("message", "text TEXT NOT NULL", f"text TEXT NOT NULL CHECK ({ENDLESS} > 0)"),
        ("message", "text TEXT NOT NULL", f"text TEXT NOT NULL DEFAULT ({LARGE})"),
        ("message", "text TEXT NOT NULL", f"text TEXT AS ({LARGE})"),
        ("log", "id INTEGER PRIMARY KEY", "id INTEGER"),
        ("log", "STRICT", ""),
        ("log", "STRICT", "STRICT, WITHOUT ROWID"),
        ("log", "event", "Event"),
        ("log", "event", "event /* of a kind */"),
    ],
)
def test_our_tables_in_another_form_are_refused(path: Path, table: str, old: str, new: str) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table))
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        assert new in sql
    check_refused(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_letter_may_differ(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("schema") / "chat.slot"
    SlotFile.create(path).close()
    with raw(path) as connection:
        column = data.draw(st.sampled_from(["type", "name", "tbl_name", "sql"]))
        table = data.draw(st.sampled_from(sorted(schema.TABLES)))
        (old,) = connection.execute(f"SELECT {column} FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        place = data.draw(st.integers(0, len(old)))
        new = old[:place] + data.draw(st.text(max_size=3)) + old[place + data.draw(st.integers(0, 3)) :]
        connection.execute(f"UPDATE sqlite_schema SET {column} = ? WHERE name = ?", (new, table))
    if new == old:
        SlotFile.open(path).close()
    else:
        with pytest.raises(SlotFileError):
            SlotFile.open(path)


def test_a_list_without_end_is_not_read_to_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raw(path) as connection:
        connection.execute("BEGIN")
        for n in range(5_000):
            connection.execute(f"CREATE TABLE t{n} (id INTEGER PRIMARY KEY)")
        connection.execute("COMMIT")
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    with pytest.raises(SlotFileError):
        SlotFile.open(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(count, 10_000)
        with suppress(sqlite3.Error):
            connection.execute(schema.SCHEMA_SQL).fetchall()
    assert steps > 1, "such a list takes more steps than a look may"


def test_what_a_crash_hides_is_looked_at_when_it_is_there(path: Path) -> None:
    """A file whose journal is hot becomes another one when it is opened."""
    with raw(path) as connection:
        connection.execute("CREATE VIEW v AS SELECT 1")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_spill=ON")
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("DROP VIEW v")
        connection.execute("UPDATE message SET text = hex(zeroblob(3000000))")
        copy = path.with_name("crashed.slot")
        copy.write_bytes(path.read_bytes())
        copy.with_name("crashed.slot-journal").write_bytes(path.with_name("chat.slot-journal").read_bytes())
    with pytest.raises(SlotFileError, match="holds something that no slot file has"):
        SlotFile.open(copy)


@pytest.mark.parametrize("first", range(1, schema.layout_version() + 1))
def test_files_of_every_layout_are_known(tmp_path: Path, first: int) -> None:
    path = tmp_path / "old.slot"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for table in schema.TABLES.values():
            if table.since <= first:
                connection.execute(table.create_sql(first))
        connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={first}")
        totals = {"id": schema.TOTALS_ID, "value": "{}"}
        connection.execute("INSERT INTO totals VALUES (?, ?, ?)", (*totals.values(), schema.checksum("totals", totals)))
    for layout in range(first, schema.layout_version() + 1):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in schema.upgrade_sql(layout) if layout > first else ():
                connection.execute(statement)
            assert frozenset(connection.execute(schema.SCHEMA_SQL)) in schema.known_schemas(layout)
            connection.execute(f"PRAGMA user_version={layout}")
        Connection(path, read_only=True).close()
    with SlotFile.open(path) as slot_file:
        assert slot_file.writable
        slot_file.add_message(None, "user", "Hello", created=1)
    assert verify(path) == []


def test_damage_to_the_list_is_called_damage(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'TEXT', 'TEXU') WHERE name = 'log'")
    with pytest.raises(DamagedError, match="its list of tables is not what it should be"):
        SlotFile.open(path)
