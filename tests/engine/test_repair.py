"""Damaged slot files are healed in one step: the text and all that is sound go on, and the damaged file is kept."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cli import main
from engine.errors import SlotFileError
from engine.slot.file.repair import open_repaired, repair
from engine.slot.file.schema import PAGE_SIZE, TABLES
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.slot_samples import Contents, read_all, write_conversation


class Whole:
    """An undamaged file; no dataclass, because hypothesis would print all of it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "whole.slot"
        write_conversation(path)
        self.data = path.read_bytes()
        with SlotFile.open(path) as slot_file:
            self.contents = read_all(slot_file)


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("repair"))


@pytest.fixture(name="path")
def _path(whole: Whole, tmp_path: Path) -> Path:
    path = tmp_path / "chat.slot"
    path.write_bytes(whole.data)
    return path


def run(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)


def read(path: Path) -> Contents:
    with SlotFile.open(path, read_only=True) as slot_file:
        return read_all(slot_file)


def kept_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.damaged*"))


Damage = Callable[[bytes], bytes]


def flip(place: float) -> Damage:
    def damage(data: bytes) -> bytes:
        changed, bit = bytearray(data), int(place * len(data) * 8)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    return damage


def blank(place: float, length: int) -> Damage:
    def damage(data: bytes) -> bytes:
        start = int(place * len(data))
        end = min(start + length, len(data))
        return data[:start] + bytes(end - start) + data[end:]

    return damage


def cut(place: float) -> Damage:
    return lambda data: data[: int(place * len(data))]


PLACES = st.floats(0, 1, exclude_max=True)
DAMAGES = PLACES.map(flip) | st.builds(blank, PLACES, st.integers(1, 40_000)) | PLACES.map(cut)


@settings(deadline=None, max_examples=150)
@given(damage=DAMAGES)
def test_damage_anywhere_is_repaired_at_once(
    whole: Whole, tmp_path_factory: pytest.TempPathFactory, damage: Damage
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "chat.slot"
    path.write_bytes(damaged := damage(whole.data))
    try:
        found = read(path)
        problems = verify(path)
    except SlotFileError:
        with suppress(SlotFileError):
            assert repair(path) or verify(path) == []
            return
        assert path.read_bytes() == damaged
        assert kept_files(path) == []
        return
    assert bool(repair(path)) == bool(problems) == bool(kept_files(path))
    assert verify(path) == []
    assert repair(path) is None
    now = read(path)
    # nothing that could be read is lost, and nothing that is wrong is taken for right
    assert sorted(m.text for m in now.messages.values()) == sorted(m.text for m in found.messages.values())
    for message in now.messages.values():
        assert message.damaged or message == whole.contents.messages[message.id]
    assert all(now.models[id] == model for id, model in found.models.items())
    assert {key for key, _ in found.state.items() if now.state.get(key) != found.state[key]} == set()
    with SlotFile.open(path) as slot_file:
        slot_file.begin_turn(slot_file.leaf(), "Go on", created=1)
    assert verify(path) == []


@pytest.mark.parametrize("table", sorted(TABLES.keys() - {"totals", "manifest", "message"}))
def test_a_lost_side_table_heals_by_itself_on_opening(path: Path, whole: Whole, table: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    start = (page - 1) * PAGE_SIZE
    damaged = whole.data[:start] + bytes(4096) + whole.data[start + 4096 :]
    path.write_bytes(damaged)
    with open_repaired(path) as slot_file:
        assert len(slot_file.notes) == 1
        assert slot_file.notes[0].endswith("the damaged one is kept as chat.slot.damaged.")
        assert read_all(slot_file).messages == whole.contents.messages
        slot_file.begin_turn(slot_file.leaf(), "Go on", created=1)
    assert verify(path) == []
    with open_repaired(path) as slot_file:
        assert list(slot_file.notes) == []
    assert len(kept_files(path)) == 1


@pytest.mark.parametrize("created", ["1e300", "-1", "9e999"])
def test_of_a_damaged_message_only_what_is_shown_is_used(path: Path, whole: Whole, created: str) -> None:
    run(path, f"UPDATE message SET created = {created}, finish_reason = 'pending' WHERE id = 1")
    with open_repaired(path) as slot_file:
        assert slot_file.notes
        (first, *others) = slot_file.messages()
        assert (first.damaged, first.created, first.finish_reason) == (True, 0.0, None)
        assert first.text == whole.contents.messages[1].text
        assert others == list(whole.contents.messages.values())[1:]
    assert verify(path) == []
    with SlotFile.open(path) as slot_file:
        assert [message.id for message in slot_file.messages() if message.damaged] == [1]
        slot_file.save_copy(path.with_name("copy.slot"))
    with SlotFile.open(path.with_name("copy.slot")) as copy:
        assert [message.id for message in copy.messages() if message.damaged] == [1]


def test_lost_messages_are_left_to_the_person(path: Path) -> None:
    run(path, "DELETE FROM message WHERE id = 8")
    with open_repaired(path) as slot_file:
        assert not slot_file.writable
        assert slot_file.damage
    assert kept_files(path) == []
    repaired = repair(path)
    assert repaired is not None
    assert repaired.kept == kept_files(path)[0]
    with open_repaired(path) as slot_file:
        assert slot_file.writable
        assert len(slot_file.messages()) == 16
        assert slot_file.log()[-1].event == "repair"
    assert verify(path) == []


def test_damaged_files_never_take_each_others_place(path: Path, whole: Whole) -> None:
    contents = []
    for id in (3, 5, 7):
        run(path, f"UPDATE message SET text = 'wrong' WHERE id = {id}")
        contents.append(path.read_bytes())
        assert repair(path)
    assert [kept.name for kept in kept_files(path)] == [f"chat.slot.damaged{n}" for n in ("", "-2", "-3")]
    assert [kept.read_bytes() for kept in kept_files(path)] == contents


def test_without_room_on_the_disk_the_file_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, "DELETE FROM rows WHERE id % 3 = 0")
    damaged = path.read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(SlotFileError, match="make room first"):
        repair(path)
    assert path.read_bytes() == damaged
    with open_repaired(path) as slot_file:
        assert slot_file.notes[0].endswith("make room first.")
        assert slot_file.state_damage
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == ["chat.slot"]


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} is whole.\n"
    run(path, "DELETE FROM rows WHERE id % 3 = 0")
    assert main(["verify", str(path)]) == 1
    assert main(["repair", str(path)]) == 0
    assert capsys.readouterr().out.endswith("the damaged one is kept as chat.slot.damaged.\n")
    assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: bytes(len(data)), "is damaged: its beginning is gone"),
        (lambda data: bytes(PAGE_SIZE) + data[PAGE_SIZE:], "is damaged: its beginning is gone"),
        (lambda data: data[:1500], "is damaged"),
        (lambda data: data[:60], "is damaged: it is cut short"),
        (lambda data: data[:7], "is damaged: it is cut short"),
        (lambda data: b"\x89PNG" + data[4:], "is not a slot file"),
    ],
)
def test_damage_is_called_damage(path: Path, whole: Whole, damage: Damage, sentence: str) -> None:
    path.write_bytes(damaged := damage(whole.data))
    for open_file in (SlotFile.open, open_repaired, repair):
        with pytest.raises(SlotFileError, match=sentence) as raised:
            open_file(path)
        assert "None" not in str(raised.value)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("kind", ["wal", "newer", "foreign", "empty", "text"])
def test_a_file_that_is_not_ours_is_not_changed(tmp_path: Path, whole: Whole, kind: str) -> None:
    path = tmp_path / "other.slot"
    match kind:
        case "wal" | "foreign":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA journal_mode={'WAL' if kind == 'wal' else 'DELETE'}")
                connection.execute("CREATE TABLE t (x)")
                connection.executemany("INSERT INTO t VALUES (?)", ((random.random(),) for _ in range(100)))
                connection.commit()
        case "newer":
            path.write_bytes(whole.data)
            run(path, "PRAGMA user_version=99")
        case "empty":
            path = tmp_path / "todo.txt"
            path.touch()
        case "text":
            path.write_text("Remember the milk.\n")
    before = path.read_bytes()
    names = {file.name for file in tmp_path.iterdir()}
    for read_only in (False, True):
        with pytest.raises(SlotFileError, match="newer version" if kind == "newer" else "is not a slot file"):
            SlotFile.open(path, read_only=read_only)
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == names


def test_looking_at_a_file_gives_up_no_lock(path: Path) -> None:
    """Another process must not get at a file that this one has open, only because this one looked at it again."""
    with SlotFile.open(path):
        with pytest.raises(SlotFileError, match="is open in another"):
            SlotFile.open(path, wait=False)
        assert "wrlock" in lock_seen_from_elsewhere(path)


def lock_seen_from_elsewhere(path: Path) -> str:
    """Return what another process is told about locking the byte where SQLite locks for writing."""
    program = (
        "import fcntl, struct, sys\n"
        "want = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0x40000000, 512, 0)\n"
        "kind = struct.unpack('hhqqi4x', fcntl.fcntl(open(sys.argv[1], 'r+b'), fcntl.F_GETLK, want))[0]\n"
        "print({fcntl.F_RDLCK: 'rdlock', fcntl.F_WRLCK: 'wrlock', fcntl.F_UNLCK: 'free'}[kind])\n"
    )
    return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True).stdout
