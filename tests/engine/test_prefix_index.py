"""The index of beginnings: what it finds, and that nothing in its way stops it."""

import os
from pathlib import Path

import numpy as np
import pytest

from engine.slot.file.slot_file import SlotFile
from engine.slot.prefix_index import PrefixIndex, read_steps
from engine.slot.records import ModelIdentity, Segment, StoredRows
from tests.slot_samples import sample_model

MODEL = sample_model("m")


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def write(path: Path, *runs: tuple[int | None, int, str], model: ModelIdentity = MODEL, marked: bool = True) -> Path:
    """Write a slot file of segments, each behind so many tokens of an earlier one (counted from 0)."""
    with SlotFile.create(path) as file:
        model = file.put_model(model)
        segments: list[Segment] = []
        for parent, length, text in runs:
            above = None if parent is None else segments[parent]
            id = len(segments) + 1
            segments.append(Segment.follow(id, model=model.id, parent=above, length=length, token_ids=ids(text)))
            file.put_segment(segments[-1])
            if marked:
                file.put_rows(StoredRows(100 + id, id, "attention", 0, 1, 1), b"k", mark=bytes(32))
    return path


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    write(folder / "long.slot", (None, 0, "abcdef"), (0, 6, "ghijkl"), (1, 3, "XYZ"))
    write(folder / "short.slot", (None, 0, "abcdef"), (0, 3, "UVW"))
    write(folder / "other.slot", (None, 0, "abcdef"), model=sample_model("another"))
    return folder


@pytest.fixture(name="index")
def _index(folder: Path) -> PrefixIndex:
    index = PrefixIndex(folder.parent / "index.sqlite")
    index.update(folder, but=())
    return index


def names(index: PrefixIndex, prompt: str) -> list[str]:
    return [path.name for path in index.longest(MODEL, ids(prompt))]


def test_the_longest_beginning_comes_first(index: PrefixIndex) -> None:
    assert names(index, "abcdefghijkl!") == ["long.slot", "short.slot"]
    assert names(index, "abcdef!") == ["long.slot", "short.slot"]
    assert names(index, "abcUVW!") == ["short.slot"]
    assert names(index, "abcdefghiXYZ") == ["long.slot", "short.slot"]
    assert names(index, "XYZ") == names(index, "") == []
    index.close()


def test_only_beginnings_of_what_is_marked_are_taken_in(index: PrefixIndex, folder: Path) -> None:
    write(folder / "received.slot", (None, 0, "abcdef"), (0, 6, "ghijkl"), marked=False)
    path = write(folder / "mixed.slot", (None, 0, "abcdef"), (0, 6, "ghi"), (1, 3, "jkl"), (0, 6, "X"), marked=False)
    with SlotFile.open(path) as file:
        file.put_rows(StoredRows(102, 2, "attention", 0, 1, 1), b"k", mark=bytes(32))
    index.update(folder, but=())
    assert names(index, "abcdefghijkl") == ["long.slot", "mixed.slot", "short.slot"]
    assert {step.length for step in read_steps(SlotFile.open(path, read_only=True))} == {6, 3}
    index.close()


def test_changes_are_followed(index: PrefixIndex, folder: Path) -> None:
    (folder / "long.slot").unlink()
    write(folder / "new.slot", (None, 0, "abcdefghi"))
    index.update(folder, but=[folder / "short.slot"])
    assert names(index, "abcdefghi") == ["new.slot", "short.slot"]
    (folder / "new.slot").unlink()
    os.rename(folder / "other.slot", folder / "moved.slot")
    index.update(folder, but=())
    assert names(index, "abcdefghi") == ["short.slot"]
    index.close()


def test_an_open_file_tells_of_itself_and_is_read_again_later(index: PrefixIndex, folder: Path) -> None:
    path = folder / "short.slot"
    with SlotFile.open(path) as file:
        index.put(path, [])
        assert names(index, "abcdef") == ["long.slot"]
        index.update(folder, but=())  # it is locked
        assert names(index, "abcdef") == ["long.slot"]
        index.put(path, read_steps(file))
    assert names(index, "abcdef") == ["long.slot", "short.slot"]
    index.put(path, [])
    index.update(folder, but=())
    assert names(index, "abcdef") == ["long.slot", "short.slot"]
    index.close()


def test_the_index_is_kept_and_private(index: PrefixIndex, folder: Path) -> None:
    index.close()
    path = folder.parent / "index.sqlite"
    assert path.stat().st_mode & 0o077 == 0
    again = PrefixIndex(path)
    assert names(again, "abcdef") == ["long.slot", "short.slot"]
    again.close()


@pytest.mark.parametrize("damage", [b"dear diary" * 500, b"", None])
def test_an_index_that_is_damaged_is_made_again(index: PrefixIndex, folder: Path, damage: bytes | None) -> None:
    index.close()
    path = folder.parent / "index.sqlite"
    path.write_bytes(path.read_bytes()[:6000] if damage is None else damage)
    again = PrefixIndex(path)
    for _ in range(2):
        again.update(folder, but=())
    assert names(again, "abcdef") == ["long.slot", "short.slot"]
    again.close()


def test_without_a_place_to_keep_it_it_lives_in_memory(folder: Path) -> None:
    for path in (None, folder / "missing" / "index.sqlite"):
        index = PrefixIndex(path)
        index.update(folder, but=())
        assert names(index, "abcdef") == ["long.slot", "short.slot"]
        index.close()
    PrefixIndex(None).update(folder / "missing", but=())
