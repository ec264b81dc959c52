"""What lies beside a slot file under the names of SQLite's own files."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import SlotFileError
from engine.slot.file.beside import companions
from engine.slot.file.slot_file import SlotFile
from tests.impostors import IMPOSTORS

TEXT = "Hello, dormouse"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "a.slot"
    with SlotFile.create(path) as file:
        file.begin_turn(None, TEXT, created=1.0)
    return path


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", IMPOSTORS)
@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_what_is_no_file_is_not_opened(path: Path, suffix: str, kind: str, read_only: bool) -> None:
    before = path.read_bytes()
    beside = path.with_name(path.name + suffix)
    IMPOSTORS[kind](beside)
    what = kind.partition(" ")[0]
    with pytest.raises(SlotFileError) as caught:
        SlotFile.open(path, read_only=read_only)
    assert str(caught.value) == f"{beside} is in the way of a.slot: it is a {what}. Remove it first."
    link = path.with_name("link.slot")
    link.symlink_to(path)
    with pytest.raises(SlotFileError, match="is in the way"):
        SlotFile.open(link, read_only=read_only)
    other = path.with_name("b.slot")
    with SlotFile.create(other) as file, pytest.raises(SlotFileError, match="is in the way"):
        file.save_copy(path)
    assert path.read_bytes() == before
    beside.rmdir() if kind == "folder" else beside.unlink()
    with SlotFile.open(path, read_only=read_only) as file:
        assert file.messages()[0].text == TEXT


def log_of_another(path: Path) -> bytes:
    """Return the log of another database, whose checksums are right."""
    other = path.with_name("other.db")
    connection = sqlite3.connect(other)
    connection.execute("PRAGMA page_size=4096")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE message (text)")
    connection.execute("INSERT INTO message VALUES (zeroblob(10000))")
    connection.commit()
    log = other.with_name("other.db-wal").read_bytes()
    connection.close()
    return log


LOGS: dict[str, Callable[[Path], bytes]] = {
    "text": lambda _: b"garbage" * 1000,
    "one letter": lambda _: b"x",
    "zeros": lambda _: bytes(100_000),
    "the beginning of one": lambda path: log_of_another(path)[:100],
    "another file's": log_of_another,
}


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", LOGS)
def test_a_stray_log_does_no_harm(path: Path, kind: str, read_only: bool) -> None:
    before, log = path.read_bytes(), LOGS[kind](path)
    for suffix in ("-wal.damaged", "-wal.damaged-2"):
        path.with_name("a.slot-wal").write_bytes(log)
        with SlotFile.open(path, read_only=read_only) as file:
            assert [message.text for message in file.messages()][:1] == [TEXT]
            assert not file.damage
            if not read_only:
                file.begin_turn(file.leaf(), "more", created=2.0)
        assert path.with_name(f"a.slot{suffix}").read_bytes() == log
        assert not any(companion.exists() for companion in companions(path))
        assert path.read_bytes() == before or not read_only


@pytest.mark.parametrize("kind", LOGS)
def test_a_stray_log_that_can_not_be_put_aside_is_ignored(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    path.with_name("a.slot-wal").write_bytes(LOGS[kind](path))
    monkeypatch.setattr(Path, "rename", refuse)
    with SlotFile.open(path, read_only=True) as file:
        assert file.messages()[0].text == TEXT


def test_the_log_of_a_file_that_another_program_gave_one_is_its_own(path: Path) -> None:
    script = (
        "import os, sqlite3, sys; file = sqlite3.connect(sys.argv[1]); file.execute('PRAGMA journal_mode=WAL');"
        "file.execute('BEGIN'); file.execute('CREATE TABLE t (x)'); file.execute('DROP TABLE t');"
        "file.execute('COMMIT'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.with_name("a.slot-wal").stat().st_size
    with SlotFile.open(path) as file:
        assert file.messages()[0].text == TEXT
    assert not list(path.parent.glob("*.damaged"))


def test_logs_of_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    path = tmp_path / "theirs.slot"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE message (text)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    path.with_name("theirs.slot-wal").write_bytes(b"theirs")
    with pytest.raises(SlotFileError, match="is not a slot file"):
        SlotFile.open(path)
    assert path.read_bytes() == before
    assert path.with_name("theirs.slot-wal").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    "content", [b"garbage" * 1000, bytes(100_000), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"x" * 600]
)
def test_a_journal_of_garbage_does_no_harm(path: Path, content: bytes) -> None:
    path.with_name("a.slot-journal").write_bytes(content)
    with SlotFile.open(path) as file:
        assert file.messages()[0].text == TEXT
