"""The index of beginnings: what it finds, and that nothing in its way stops it."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from engine.slot.file.slot_file import SlotFile
from engine.slot.prefix_index import PrefixIndex, read_steps
from engine.slot.records import ModelIdentity, Segment, StoredRows
from tests.impostors import IMPOSTORS
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


def test_a_name_that_is_no_text_is_passed_over(index: PrefixIndex, folder: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(folder / "a.slot").replace(b"a.slot", b"\xff.slot")))
    write(path, (None, 0, "abcdef"))
    index.update(folder, but=())
    index.put(path, [])
    index.forget(path)
    assert names(index, "abcdef") == ["long.slot", "short.slot"]
    index.close()


def everything(path: Path) -> bytes:
    return b"".join(other.read_bytes() for other in path.parent.glob(f"{path.name}*"))


def test_nothing_is_left_of_a_file_that_is_forgotten(index: PrefixIndex, folder: Path) -> None:
    kept = folder.parent / "index.sqlite"
    assert b"short.slot" in everything(kept)
    index.forget(folder / "short.slot")
    assert b"short.slot" not in everything(kept)
    assert names(index, "abcdef") == ["long.slot"]
    index.close()
    index.forget(folder / "long.slot")
    assert b"long.slot" not in everything(kept)
    again = PrefixIndex(kept)
    assert names(again, "abcdef") == []
    again.close()


def test_a_file_is_forgotten_while_another_thread_is_at_the_index(index: PrefixIndex, folder: Path) -> None:
    path = folder / "short.slot"

    def forget() -> None:
        index.forget(path)

    with index._forgiving() as db:
        db.execute("INSERT INTO file VALUES (?, 0, 0)", ("another",))
        forgetting = Thread(target=forget)
        forgetting.start()
        forgetting.join()  # it does not wait for us
        db.execute("INSERT INTO step SELECT path, 'more', base, length, digest FROM step")
    assert b"short.slot" not in everything(folder.parent / "index.sqlite")
    assert names(index, "abcdef") == ["long.slot"]
    index.close()


def test_many_threads_may_forget(index: PrefixIndex, folder: Path) -> None:
    paths = [write(folder / f"{n}.slot", (None, 0, "abcdef")) for n in range(40)]
    index.update(folder, but=())
    with ThreadPoolExecutor(4) as threads:
        for path in paths:
            threads.submit(index.forget, path)
            index.put(folder / "open.slot", [])
    assert names(index, "abcdef") == ["long.slot", "short.slot"]
    index.close()


def test_what_is_forgotten_while_another_process_has_the_index_is_forgotten_later(
    index: PrefixIndex, folder: Path
) -> None:
    with closing(sqlite3.connect(folder.parent / "index.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        index.forget(folder / "short.slot")
        other.execute("ROLLBACK")
    assert names(index, "abcdef") == ["long.slot"]
    index.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
def test_what_is_no_file_is_not_opened(index: PrefixIndex, folder: Path, suffix: str, kind: str) -> None:
    index.close()
    place = folder.parent / f"index.sqlite{suffix}"
    place.unlink(missing_ok=True)
    IMPOSTORS[kind](place)
    again = PrefixIndex(folder.parent / "index.sqlite")
    again.update(folder, but=())
    assert names(again, "abcdef") == ["long.slot", "short.slot"]
    again.close()


def test_a_journal_of_an_index_that_was_damaged_is_not_written_into_the_next(index: PrefixIndex, folder: Path) -> None:
    index.close()
    path = folder.parent / "index.sqlite"
    path.write_bytes(b"dear diary" * 500)
    path.with_name("index.sqlite-wal").write_bytes(b"garbage" * 100)
    again = PrefixIndex(path)
    again.update(folder, but=())
    assert names(again, "abcdef") == ["long.slot", "short.slot"]
    again.close()
    assert not path.with_name("index.sqlite-wal").exists()
