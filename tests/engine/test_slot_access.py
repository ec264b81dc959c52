"""Who may open a slot file, and what is told to those who may not or lose it."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.errors import SlotBusyError, SlotFileError
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from engine.slot.records import Receipt, Segment, StoredRows
from tests.slot_samples import read_all, write_conversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.slot"


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file behind Dormouse's back, without its checksums."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def test_private(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    with pytest.raises(SlotFileError, match="does not exist"):
        SlotFile.create(folder / "chat.slot")
    folder.mkdir()
    old = os.umask(0)
    try:
        with SlotFile.create(folder / "chat.slot") as slot_file, slot_file.transaction():
            slot_file.add_message(None, "user", "Hello", created=1)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
            assert modes == {"chat.slot": 0o600, "chat.slot-journal": 0o600}
        with SlotFile.open(folder / "chat.slot") as slot_file:
            slot_file.save_copy(path)
    finally:
        os.umask(old)
    assert [file.name for file in folder.iterdir()] == ["chat.slot"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_create_keeps_what_is_there(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SlotFileError, match=r"exists already\.$"):
        SlotFile.create(path)
    assert path.read_text() == "precious"


def test_crash_while_creating(path: Path) -> None:
    path.touch()
    with SlotFile.open(path) as slot_file:
        assert slot_file.messages() == []
        slot_file.add_message(None, "user", "Hello", created=1)


def test_busy(path: Path) -> None:
    with SlotFile.create(path):
        for read_only in (False, True):
            with pytest.raises(SlotBusyError, match="is open in another Dormouse window or process; close it there"):
                SlotFile.open(path, read_only=read_only)


def test_two_processes(path: Path) -> None:
    SlotFile.create(path).close()
    imports = "import sys; from engine.slot.file.slot_file import SlotFile"
    program = f"{imports}; f = SlotFile.open(sys.argv[1]); print(); input()"
    command = [sys.executable, "-c", program, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(SlotBusyError):
            SlotFile.open(path)
        other.stdin.close()
        other.wait()
    SlotFile.open(path).close()


def test_two_readers(path: Path) -> None:
    write_conversation(path)
    with SlotFile.open(path, read_only=True) as first, SlotFile.open(path, read_only=True) as second:
        assert first.messages() == second.messages()
        assert not first.writable
        with pytest.raises(SlotFileError, match="opened for reading only"):
            first.add_message(None, "user", "Hello", created=1)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("missing.slot", "does not exist."),
        (".", "is not a file."),
        ("file/chat.slot", "a part of its path is not a folder."),
        ("text.slot", "is not a slot file."),
        ("other.db", "is not a slot file."),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_not_a_slot_file(tmp_path: Path, place: str, sentence: str, *, read_only: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "text.slot").write_text("Dear diary, " * 1000)
    with raw(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE message (id INTEGER PRIMARY KEY)")
    with pytest.raises(SlotFileError) as caught:
        SlotFile.open(tmp_path / place, read_only=read_only)
    assert str(caught.value).endswith(sentence)


def test_create_in_an_impossible_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SlotFileError, match="a part of its path is not a folder"):
        SlotFile.create(tmp_path / "file" / "chat.slot")


def test_newer_layout(path: Path) -> None:
    SlotFile.create(path).close()
    with raw(path) as connection:
        connection.execute("PRAGMA user_version=7")
    with pytest.raises(SlotFileError, match=r"newer version of Dormouse \(layout 7\); this one reads up to layout 4"):
        SlotFile.open(path)


def make_older(path: Path, layout: int) -> None:
    """Give a file an earlier layout."""
    with raw(path) as connection:
        if layout < 4:
            connection.execute("DROP TABLE mark")
        if layout < 3:
            connection.execute("ALTER TABLE message DROP COLUMN damaged")
        if layout < 2:
            connection.execute("ALTER TABLE receipt DROP COLUMN donor")
        connection.execute(f"PRAGMA user_version={layout}")


@pytest.mark.parametrize("layout", [1, 2, 3])
def test_older_layouts_are_upgraded_when_they_are_opened_for_writing(path: Path, layout: int) -> None:
    write_conversation(path)
    with SlotFile.open(path, read_only=True) as slot_file:
        before = read_all(slot_file)
    make_older(path, layout)
    for read_only, version in ((True, layout), (False, 4), (True, 4)):
        with SlotFile.open(path, read_only=read_only) as slot_file:
            now = read_all(slot_file)
            assert (now.messages, now.leaf, now.models) == (before.messages, before.leaf, before.models)
            assert slot_file.damage == slot_file.state_damage == []
            assert {receipt.donor for receipt in slot_file.receipts()} == {None}
        with raw(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    assert verify(path) == []


@pytest.mark.parametrize("borrowed", [False, True])
def test_state_behind_forks_of_older_layouts_is_put_aside_once(path: Path, borrowed: bool) -> None:
    write_conversation(path)
    with SlotFile.open(path) as slot_file:
        before = read_all(slot_file)
        (root,) = [segment for segment in slot_file.segments(1).values() if segment.parent is None]
        # one that goes on from the end of another is right
        behind = Segment.follow(500, model=1, parent=root, length=100, token_ids=np.arange(9, dtype=np.int32))
        slot_file.put_segment(behind)
        slot_file.put_rows(StoredRows(501, 500, "attention", 0, 9, 90), bytes(90))
        if borrowed:
            slot_file.put_receipt(Receipt(3, 1, 10, 70, "restored", "none", 1, 2, 3, "numpy", 4, donor="other.slot"))
    make_older(path, 2)
    right = set() if borrowed else {root.id, 500}
    for read_only in (True, False, True):
        with SlotFile.open(path, read_only=read_only) as slot_file:
            assert slot_file.segments(1).keys() == right
            assert {stored.segment for stored in slot_file.rows_index(1)} == right
            assert read_all(slot_file).messages == before.messages
            assert bool(slot_file.notes) == (not read_only)
            if slot_file.notes:
                assert "reads those parts again, once" in slot_file.notes[0]
    with SlotFile.open(path) as slot_file:
        assert list(slot_file.notes) == []
        assert slot_file.log()[-1].event == "put_aside"
    assert verify(path) == []


def test_unknown_facts_survive(path: Path) -> None:
    write_conversation(path)
    copy = path.with_name("copy.slot")
    with SlotFile.open(path) as slot_file:
        slot_file.set_manifest("future", {"x": [1, None]})
        _, reply = slot_file.begin_turn(17, "Hello", created=1)
        slot_file.update_reply(reply.id, "Hi", "stop")
        assert slot_file.damage == []
        slot_file.save_copy(copy)
    with SlotFile.open(copy) as slot_file:
        assert slot_file.manifest() == {"leaf": reply.id, "future": {"x": [1, None]}}


def test_full_disk(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        kept = slot_file.add_message(None, "user", "kept", created=1)
        connection = slot_file._connection
        limit = connection.pragma("page_count") + 2
        connection.execute(f"PRAGMA max_page_count={limit}")
        with pytest.raises(SlotFileError, match=r"could not be saved: the disk is full\.$"):
            slot_file.begin_turn(kept.id, "long " * 100_000, created=2)
        assert slot_file.messages() == [kept]
        connection.execute(f"PRAGMA max_page_count={limit + 100}")
        slot_file.begin_turn(kept.id, "long " * 100_000, created=2)
    with SlotFile.open(path) as slot_file:
        assert [len(message.text) for message in slot_file.messages()] == [4, 500_000, 0]
        assert slot_file.damage == []


@pytest.mark.parametrize("new_name", ["moved.slot", None])
def test_moved_while_open(path: Path, new_name: str | None) -> None:
    with SlotFile.create(path) as slot_file:
        if new_name:
            path.rename(path.with_name(new_name))
        else:
            path.unlink()
        with pytest.raises(SlotFileError, match="was moved or deleted while it was open"):
            slot_file.add_message(None, "user", "Hello", created=1)


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_no_right_to_write(tmp_path: Path, path: Path, locked: str) -> None:
    SlotFile.create(path).close()
    place = path if locked == "file" else tmp_path
    place.chmod(0o555)
    with without_privileges(tmp_path):
        with pytest.raises(SlotFileError, match=r"can't be written: the file or its folder is read-only\.$"):
            SlotFile.open(path)
        with SlotFile.open(path, read_only=True) as slot_file:
            assert slot_file.messages() == []
        if locked == "folder":
            with pytest.raises(SlotFileError, match="access is denied"):
                SlotFile.create(tmp_path / "new.slot")
    place.chmod(0o755)


@contextmanager
def without_privileges(folder: Path) -> Iterator[None]:
    """Do as an ordinary user, for whom modes bind; all folders above must let him pass."""
    if os.geteuid() != 0:
        yield
        return
    modes = {parent: parent.stat().st_mode for parent in folder.parents}
    for parent, mode in modes.items():
        parent.chmod(mode | 0o111)
    for place in (folder, *folder.iterdir()):
        os.chown(place, 65534, -1)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for parent, mode in modes.items():
            parent.chmod(mode)


@pytest.mark.parametrize("read_only", [False, True])
def test_hot_journal(tmp_path: Path, path: Path, read_only: bool) -> None:
    write_conversation(path)
    torn = path.with_name("torn.slot")
    with raw(path) as connection:
        # a small cache makes SQLite write pages, and the journal first, in the middle of a transaction
        connection.execute("PRAGMA cache_size=2")
        connection.execute("BEGIN")
        connection.execute("UPDATE message SET text = 'torn' || text")
        torn.write_bytes(path.read_bytes())
        Path(f"{torn}-journal").write_bytes(Path(f"{path}-journal").read_bytes())
        connection.execute("ROLLBACK")
    tmp_path.chmod(0o555)
    with (
        without_privileges(tmp_path),
        pytest.raises(SlotFileError, match="open it once for writing to repair it"),
    ):
        SlotFile.open(torn, read_only=True)
    tmp_path.chmod(0o755)
    with SlotFile.open(torn, read_only=read_only) as slot_file, SlotFile.open(path) as undisturbed:
        assert slot_file.messages() == undisturbed.messages()
        assert slot_file.damage == []
