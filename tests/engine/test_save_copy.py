"""Copies that take the place of another file: whole, whatever was there, and of no file that somebody has open."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from engine.errors import DormouseError, SlotBusyError, SlotFileError
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.records import Message
from tests.engine.test_repair import lock_seen_from_elsewhere
from tests.slot_samples import write_conversation

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """Where another conversation is to be saved."""
    return tmp_path / "f.slot"


@pytest.fixture(name="other")
def _other(tmp_path: Path) -> Iterator[SlotFile]:
    """A conversation that is saved elsewhere, of other pages than those of `tear`."""
    with SlotFile.create(tmp_path / "other.slot") as file:
        for n in range(40):
            file.add_message(None, "user", f"{n} of the other conversation. " * 200, created=n)
        yield file


def tear(path: Path) -> None:
    """Leave a slot file as a process leaves it that is killed in the middle of a commit."""
    whole = path.with_name("whole.slot")
    write_conversation(whole)
    with closing(sqlite3.connect(whole, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=2")  # so that pages are written, and the journal first, before the commit
        connection.execute("BEGIN")
        connection.execute("UPDATE message SET text = 'torn' || text")
        path.write_bytes(whole.read_bytes())
        journal(path).write_bytes(journal(whole).read_bytes())
        connection.execute("ROLLBACK")


def leave_wal(path: Path) -> None:
    """Leave a database beside which all its newest pages are."""
    made = path.with_name("made.db")
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=16384")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (randomblob(100000))")
        for suffix in ("", "-wal"):
            path.with_name(path.name + suffix).write_bytes(made.with_name(made.name + suffix).read_bytes())


def journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")


def names(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir() if file.name.startswith(path.name)}


def read(path: Path) -> list[Message]:
    with SlotFile.open(path) as file:
        assert not file.damage
        return file.messages()


@pytest.mark.parametrize("left", ["torn", "journal alone", "journal of a damaged file", "wal", "wal alone"])
def test_what_a_crash_left_beside_a_file_does_not_get_into_the_copy(path: Path, other: SlotFile, left: str) -> None:
    if left.startswith("wal"):
        leave_wal(path)
    else:
        tear(path)
    if left.endswith("alone"):
        path.unlink()
    elif left == "journal of a damaged file":
        path.write_bytes(b"no database" * 1000)
    other.save_copy(path)
    assert names(path) == {"f.slot"}
    assert read(path) == other.messages()
    assert verify(path) == []


@contextmanager
def opened_elsewhere(path: Path, *, read_only: bool) -> Iterator[None]:
    program = (
        "import sys; from engine.slot.file.slot_file import SlotFile\n"
        f"file = SlotFile.open(sys.argv[1], read_only={read_only}); print(len(file.messages()), flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()
        process.wait()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_another_process_has_open_is_not_replaced(path: Path, other: SlotFile, read_only: bool) -> None:
    write_conversation(path)
    before = path.read_bytes()
    with opened_elsewhere(path, read_only=read_only), pytest.raises(SlotBusyError, match="choose another name"):
        other.save_copy(path)
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".*"))
    other.save_copy(path)
    assert read(path) == other.messages()


def test_a_file_that_this_process_has_open_is_not_replaced(path: Path, other: SlotFile) -> None:
    write_conversation(path)
    with SlotFile.open(path) as mine:
        with pytest.raises(SlotBusyError, match="is open, here or in another Dormouse"):
            other.save_copy(path)
        assert "wrlock" in lock_seen_from_elsewhere(path)
        mine.add_message(None, "user", "It is mine still.", created=1)
    assert read(path)[-1].text == "It is mine still."


def test_a_conversation_goes_on_where_it_is_when_the_other_place_is_taken(path: Path, tmp_path: Path) -> None:
    errors: list[DormouseError] = []
    places = (path, tmp_path / "mine.slot")
    stores = [Store(partial(SlotFile.create, place), on_error=errors.append) for place in places]
    for store in stores:
        store.flush()
    with pytest.raises(SlotBusyError):
        stores[1].move(path).result()
    for store in stores:
        store.call(SlotFile.add_message, None, "user", "Here.", created=1.0).result()
        store.close()
    assert [message.text for message in read(tmp_path / "mine.slot")] == ["Here."]


@pytest.mark.parametrize("kind", ["text", "empty", "database"])
def test_any_other_file_is_replaced(path: Path, other: SlotFile, kind: str) -> None:
    match kind:
        case "text":
            path.write_text("Remember the milk.\n")
        case "empty":
            path.touch()
        case "database":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE t (x)")
    other.save_copy(path)
    assert read(path) == other.messages()


def test_beside_a_folder_nothing_is_removed(path: Path, other: SlotFile) -> None:
    path.mkdir()
    journal(path).write_text("a diary")
    with pytest.raises(SlotFileError):
        other.save_copy(path)
    assert journal(path).read_text() == "a diary"


def test_the_repaired_file_keeps_its_journal(path: Path) -> None:
    """A crash during the next write could otherwise not be taken back."""
    errors: list[DormouseError] = []
    write_conversation(path)
    store = Store(lambda: SlotFile.open(path), on_error=errors.append)
    store.call(SlotFile.begin_turn, 17, "The reply to this is pending.", created=1.0).result()
    with closing(sqlite3.connect(f"{path.as_uri()}?nolock=1", uri=True, isolation_level=None)) as behind:
        behind.execute("DELETE FROM rows WHERE id % 3 = 0")
    assert store.repair().result() is not None

    def write(file: SlotFile) -> bool:
        with file.transaction():
            file.add_message(None, "user", "Hello", created=2)
            return journal(path).exists()

    assert store.call(write).result()
    store.close()
    assert errors == []
