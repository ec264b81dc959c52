"""Compiled code on disk: only what this installation has put there is run."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kernels.compiled.kept_code import KeptCode
from engine.paths import data_folder

CODE = {"team": b"machine code", "matmul": b"other machine code"}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels" / "avx2"
    kept = KeptCode(folder)
    for name, code in CODE.items():
        assert kept.read(name) is None
        kept.keep(name, code)
    return folder


def found(folder: Path | None) -> dict[str, bytes]:
    kept = KeptCode(folder)
    codes = {name: kept.read(name) for name in CODE}
    return {name: code for name, code in codes.items() if code is not None}


def test_what_is_kept_is_found_and_private(folder: Path) -> None:
    assert found(folder) == CODE
    assert KeptCode(folder).note is None
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _show(file: Path) -> None:
    file.chmod(0o640)


def _link(file: Path) -> None:
    elsewhere = file.rename(file.with_suffix(".elsewhere"))
    file.symlink_to(elsewhere)


def _make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _take_another(file: Path) -> None:
    file.write_bytes((file.parent / "matmul.o").read_bytes())


def _sign_without_a_key(file: Path) -> None:
    code = b"evil machine code"
    file.write_bytes(hashlib.blake2b(code, digest_size=32).digest() + code)


@pytest.mark.parametrize("change", [_cut, _empty, _show, _link, _make_pipe, _take_another, _sign_without_a_key])
def test_what_others_may_have_put_there_is_not_found(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder / "team.o")
    assert found(folder) == {"matmul": CODE["matmul"]}
    KeptCode(folder).keep("team", CODE["team"])  # compiled anew, it takes its place
    assert found(folder) == CODE


@pytest.mark.parametrize("position", range(0, 32 + len(CODE["team"]), 7))
def test_no_bit_may_differ(folder: Path, position: int) -> None:
    content = bytearray((folder / "team.o").read_bytes())
    content[position] ^= 1
    (folder / "team.o").write_bytes(content)
    assert "team" not in found(folder)


def test_what_another_installation_or_instruction_set_has_compiled_is_not_found(folder: Path) -> None:
    other = folder.rename(folder.with_name("neon"))
    assert found(other) == {}
    other.rename(folder)
    assert found(folder) == CODE
    (data_folder() / "key").unlink()
    assert found(folder) == {}


@pytest.mark.parametrize("is_inner", [True, False])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, is_inner: bool, mode: int) -> None:
    spoiled = folder if is_inner else folder.parent
    spoiled.chmod(mode)
    kept = KeptCode(folder)
    kept.keep("new", b"code")
    assert kept.note == f"they are compiled at every start, because {spoiled} is not safe: others can write to it"
    assert found(folder) == {}
    assert not (folder / "new.o").exists()


def test_a_folder_of_somebody_else_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert found(folder) == {}


def test_a_link_to_a_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(folder.rename(tmp_path / "elsewhere"))
    assert found(folder) == {}
    assert "it is a link" in (KeptCode(folder).note or "")


def test_without_a_folder_nothing_is_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (None, tmp_path / "file", tmp_path / "file" / "folder"):
        assert found(place) == {}
        KeptCode(place).keep("team", b"code")
        assert KeptCode(place).note is None
