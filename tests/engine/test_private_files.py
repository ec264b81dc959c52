"""Small private files, and the key of an installation."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.paths import data_folder
from engine.private_file import UnfitFileError, create_private, make_private_folder, read_file, write_private
from engine.private_key import KEY_BYTES, installation_key
from tests.impostors import IMPOSTORS


@pytest.fixture(autouse=True)
def _no_key_yet() -> None:
    (data_folder() / "key").unlink(missing_ok=True)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_no_file_is_not_opened(path: Path, kind: str) -> None:
    IMPOSTORS[kind](path)
    with pytest.raises(UnfitFileError, match=f"it is a {kind.split(maxsplit=1)[0]}"):
        read_file(path, limit=10)


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_private_folder_is_nobody_elses_to_write(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "outer" / "inner"
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(mode)
    make_private_folder(folder)
    folder.chmod(mode | 0o020)
    with pytest.raises(UnfitFileError, match="others can write to it"):
        make_private_folder(folder)


def test_a_device_is_not_opened() -> None:
    with pytest.raises(UnfitFileError, match="it is a device"):
        read_file(os.devnull, limit=10)


def test_what_takes_the_place_of_a_file_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    looked_at = path.lstat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "lstat", lambda path: looked_at)
    with pytest.raises(UnfitFileError, match="it is a pipe"):
        read_file(path, limit=10)


def test_a_file_is_read_within_its_limit(path: Path) -> None:
    write_private(path, "né")
    assert read_file(path, limit=3, is_private=True) == "né".encode()
    with pytest.raises(UnfitFileError, match="too large"):
        read_file(path, limit=2)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602])
def test_a_private_file_is_its_owners_alone(path: Path, mode: int) -> None:
    write_private(path, b"ours")
    path.chmod(mode)
    with pytest.raises(UnfitFileError, match="alone"):
        read_file(path, limit=10, is_private=True)


def test_what_is_made_replaces_nothing_and_leaves_nothing(path: Path) -> None:
    create_private(path, b"first")
    with pytest.raises(FileExistsError):
        create_private(path, b"second")
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(path.parent)) == ["file", "home"]


def test_a_file_system_without_links_has_private_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    create_private(path, b"first")
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(path.parent)) == ["file", "home"]


def test_a_key_stays_and_is_one_for_each_purpose() -> None:
    first = installation_key("one")
    assert len(first) == KEY_BYTES
    assert installation_key("one") == first
    assert installation_key("other") != first
    file = data_folder() / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size == KEY_BYTES
    assert first != file.read_bytes()


def test_processes_that_begin_together_have_one_key() -> None:
    code = "from engine.private_key import installation_key; print(installation_key('one').hex())"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate()[0].strip() for process in started} == {installation_key("one").hex()}


def _shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def _show(file: Path) -> None:
    file.chmod(0o644)


def _link(file: Path) -> None:
    elsewhere = file.rename(file.with_name("elsewhere"))
    file.symlink_to(elsewhere)


@pytest.mark.parametrize("spoil", [_shorten, _lengthen, _show, _link])
def test_a_key_that_others_may_know_is_replaced(spoil: Callable[[Path], None]) -> None:
    before = installation_key("one")
    spoil(data_folder() / "key")
    after = installation_key("one")
    assert after != before
    assert installation_key("one") == after
    assert not (data_folder() / "key").is_symlink()


def test_without_a_place_for_it_the_key_is_one_of_this_process() -> None:
    (data_folder() / "key").mkdir()
    kept = installation_key("one")
    assert kept == installation_key("one")
    (data_folder() / "key").rmdir()
    assert installation_key("one") != kept
