"""The list of conversations, over files in every condition."""

import json
import os
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.library import Library, LibraryEntry, look_into
from engine.errors import DormouseError
from engine.paths import cache_folder
from engine.slot.file.slot_file import SlotFile
from tests.clock import best_of_three
from tests.impostors import IMPOSTORS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "conversations"
    path.mkdir()
    return path


def write_slot(path: Path, text: str, *, age: float = 0) -> Path:
    with SlotFile.create(path) as file:
        system = file.add_message(None, "system", "Be brief.", created=0)
        file.begin_turn(system.id, text, created=0)
    os.utime(path, (time.time() - age,) * 2)
    return path


def entries(library: Library) -> list[LibraryEntry]:
    """Return the entries once all files were looked into."""
    unread = {path: look_into(path, status) for path, status in library.unread()}
    library.learn({path: known for path, known in unread.items() if known is not None})
    return library.entries()


def titles(library: Library) -> list[str]:
    return [entry.title for entry in entries(library)]


def test_newest_come_first_with_their_first_words(folder: Path) -> None:
    old = write_slot(folder / "a.slot", "An old\n  question", age=1000)
    new = write_slot(folder / "b.slot", "A new question")
    first, second = entries(Library(folder))
    assert (first.path, first.title) == (str(new), "A new question")
    assert (second.path, second.title) == (str(old), "An old question")
    assert second.nbytes == old.stat().st_size
    assert second.modified == pytest.approx(time.time() - 1000, abs=60)
    assert not first.damaged


def test_a_title_is_found_by_the_name_of_the_file(folder: Path) -> None:
    library = Library(folder)
    library.note_title(folder / "tea.slot", "Tea for three?")
    assert library.title("tea.slot") == "Tea for three?"
    assert library.title("unknown.slot") == "unknown"
    assert library.folder == folder


def test_long_titles_are_cut(folder: Path) -> None:
    write_slot(folder / "a.slot", "word " * 1000)
    (title,) = titles(Library(folder))
    assert len(title) <= 120
    assert title.endswith("word…")


def test_other_files_are_not_listed(folder: Path) -> None:
    for name in ("notes.txt", ".hidden.slot", "a.slot-journal"):
        (folder / name).write_text("x")
    (folder / "folder.slot").mkdir()
    assert Library(folder).entries() == []


def test_missing_folder_is_an_empty_library(tmp_path: Path) -> None:
    assert Library(tmp_path / "nowhere").entries() == []


def test_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DormouseError, match="can't be listed"):
        Library(tmp_path / "file").entries()


def test_damaged_files_are_listed_with_a_mark(folder: Path) -> None:
    path = write_slot(folder / "broken.slot", "Hello")
    content = bytearray(path.read_bytes())
    content[16384:] = bytes(len(content) - 16384)
    path.write_bytes(content)
    (entry,) = entries(Library(folder))
    assert (entry.title, entry.damaged) == ("broken", True)


@pytest.mark.parametrize("content", [b"", b"no database", os.urandom(5000)])
def test_foreign_files_are_called_by_their_names(folder: Path, content: bytes) -> None:
    (folder / "strange.slot").write_bytes(content)
    library = Library(folder)
    assert titles(library) == ["strange"]
    assert (folder / "strange.slot").read_bytes() == content


def test_titles_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slot(folder / "a.slot", "Hello")
    assert titles(Library(folder)) == ["Hello"]
    monkeypatch.setattr(SlotFile, "open", None)
    assert titles(Library(folder)) == ["Hello"]
    assert (cache_folder() / "titles.json").stat().st_mode & 0o777 == 0o600


def test_changed_files_are_read_again(folder: Path) -> None:
    path = write_slot(folder / "a.slot", "Before", age=100)
    library = Library(folder)
    assert titles(library) == ["Before"]
    path.unlink()
    write_slot(path, "After")
    assert titles(library) == ["After"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": {"b": 2}}'])
def test_damaged_cache_is_no_matter(folder: Path, content: str) -> None:
    write_slot(folder / "a.slot", "Hello")
    (cache_folder() / "titles.json").write_text(content)
    assert titles(Library(folder)) == ["Hello"]


@pytest.mark.parametrize(
    "known", [{"title": 5}, {"title": None}, {"mtime_ns": "0"}, {"nbytes": 1.5}, {"damaged": 1}, {"title": ["a"]}]
)
def test_values_of_other_types_in_the_cache_are_no_matter(folder: Path, known: dict[str, object]) -> None:
    path = write_slot(folder / "a.slot", "Hello")
    sound = {"title": "Hello", "mtime_ns": path.stat().st_mtime_ns, "nbytes": path.stat().st_size, "damaged": False}
    (cache_folder() / "titles.json").write_text(json.dumps({str(path): sound | known}))
    (entry,) = entries(Library(folder))
    assert (entry.title, entry.damaged) == ("Hello", False)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_no_file_is_not_opened(folder: Path, kind: str) -> None:
    IMPOSTORS[kind](cache_folder() / "titles.json")
    write_slot(folder / "a.slot", "Hello")
    IMPOSTORS[kind](write_slot(folder / "b.slot", "Hidden").with_name("b.slot-journal"))
    IMPOSTORS[kind](folder / "c.slot")
    assert [title for title in titles(Library(folder)) if title != "c"] == ["b", "Hello"]
    (cache_folder() / "titles.json").unlink() if kind != "folder" else None


@pytest.mark.clock
def test_open_files_are_listed_at_once_and_stay_locked(folder: Path) -> None:
    path = write_slot(folder / "a.slot", "Hello")
    with SlotFile.open(path):
        library = Library(folder)
        assert titles(library) == ["a"]
        library.note_title(path, "Hello\n\nthere")
        assert titles(library) == ["Hello there"]
        assert best_of_three(lambda: Library(folder).entries()) < 0.1
        # another process must still find it locked: whoever closes a file loses its process's locks on it
        code = "import sys; from engine.slot.file.slot_file import SlotFile; SlotFile.open(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
        assert "SlotBusyError" in other.stderr
    assert titles(Library(folder)) == ["Hello"]


def test_titles_of_open_files_are_remembered(folder: Path) -> None:
    path = write_slot(folder / "a.slot", "Hello")
    Library(folder).note_title(path, "Noted")
    with SlotFile.open(path):
        assert titles(Library(folder)) == ["Noted"]


@pytest.mark.clock
def test_many_unknown_files_do_not_hold_up_the_window(folder: Path) -> None:
    original = write_slot(folder / "0.slot", "Hello").read_bytes()
    for number in range(1, 100):
        (folder / f"{number}.slot").write_bytes(original)

    def first_look() -> None:
        (cache_folder() / "titles.json").unlink(missing_ok=True)
        assert len(Library(folder).entries()) == 100

    assert best_of_three(first_look) < 0.5
    assert len(Library(folder).unread()) == 100


def test_new_paths_are_readable_and_free(folder: Path) -> None:
    library = Library(folder)
    paths = {library.new_path() for _ in range(5)}
    assert len(paths) == 5
    for path in paths:
        assert path.parent == folder
        assert path.suffix == ".slot"
        assert path.name.startswith(time.strftime("%Y-"))


def test_removed_conversations_leave_nothing(folder: Path) -> None:
    path = write_slot(folder / "a.slot", "A secret")
    path.with_name("a.slot-journal").write_bytes(b"")
    library = Library(folder)
    assert titles(library) == ["A secret"]
    library.remove(str(path))
    library.remove(str(path))
    assert library.entries() == []
    assert list(folder.iterdir()) == []
    assert "secret" not in (cache_folder() / "titles.json").read_text()


def test_what_cannot_be_removed_is_told(folder: Path) -> None:
    (folder / "a.slot").mkdir()
    with pytest.raises(DormouseError, match="can't be deleted"):
        Library(folder).remove(folder / "a.slot")


@pytest.mark.parametrize("known", ['{"title": 5}', '{"title": ["a"]}', '{"title": "a", "damaged": 1}'])
def test_what_the_cache_can_not_have_said_is_forgotten(folder: Path, known: str) -> None:
    path = write_slot(folder / "a.slot", "Hello")
    status = path.stat()
    given = {"mtime_ns": status.st_mtime_ns, "nbytes": status.st_size, "damaged": False} | json.loads(known)
    (cache_folder() / "titles.json").write_text(json.dumps({str(path): given}))
    assert titles(Library(folder)) == ["Hello"]


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, sqlite3.OperationalError, struct.error])
def test_whatever_a_file_makes_of_reading_it_is_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    write_slot(folder / "a.slot", "Hello")

    def fail(*_: object) -> None:
        raise error("no sense")

    monkeypatch.setattr(SlotFile, "messages", fail)
    (entry,) = entries(Library(folder))
    assert (entry.title, entry.damaged) == ("a", True)


def test_listing_reads_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slot(folder / "a.slot", "Hello")
    monkeypatch.setattr(SlotFile, "open", None)
    monkeypatch.setattr(sqlite3, "connect", None)
    assert [entry.title for entry in Library(folder).entries()] == ["a"]


def test_a_file_that_is_opened_meanwhile_keeps_the_title_that_was_told(folder: Path) -> None:
    path = write_slot(folder / "a.slot", "Before")
    library = Library(folder)
    ((name, status),) = library.unread()
    found = look_into(name, status)
    assert found is not None
    library.note_title(path, "Told")
    library.learn({name: found})
    assert [entry.title for entry in library.entries()] == ["Told"]
    assert library.unread() == []
