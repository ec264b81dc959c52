"""Compiled code in the cache folder: found again, and done without where it can't be."""

import errno
import re
from pathlib import Path

import numpy as np
import pytest

from engine.kernels import PackedMatrix, Part
from engine.kernels.compiled import library
from engine.kernels.compiled.isa import INSTRUCTION_SETS
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.layout import Layout
from tests.instruction_sets import COMPILED


@pytest.fixture(name="cache")
def _cache(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def compiled_by_a_start(cache_folder: Path | None, *, zero_point: int = 8) -> list[str]:
    """Start the kernels, use them, and return the names of the modules that were compiled."""
    return start(cache_folder, zero_point=zero_point)[0]


def start(cache_folder: Path | None, *, zero_point: int = 8) -> tuple[list[str], str | None]:
    """Do that, and also return what the kernels note."""
    names: list[str] = []
    isa, layout = INSTRUCTION_SETS[COMPILED[0]], Layout("q", value_bits=4, run=32, scale="f16", zero_point=zero_point)
    kernels = CompiledKernels(isa, n_threads=1, cache_folder=cache_folder, compiling=names.append)
    part = Part(layout, np.zeros((1, layout.group_bytes(32)), np.uint8), n_out=1, n_in=32)
    assert not kernels.matmul(np.ones((1, 32), np.float32), kernels.prepare(PackedMatrix((part,)))).any()
    kernels.close()
    return names, kernels.note


def test_a_second_start_compiles_nothing(cache: Path) -> None:
    first = compiled_by_a_start(cache)
    assert "team" in first
    assert len(set(first)) == len(first)
    assert compiled_by_a_start(cache) == []
    assert len(list(cache.glob("*/*.o"))) == len(list(cache.glob("*/*"))) == len(first)


def test_damaged_files_are_compiled_anew(cache: Path) -> None:
    compiled_by_a_start(cache)
    (folder,) = cache.iterdir()
    first, second, third, *_ = sorted(folder.iterdir())
    first.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-1])
    third.write_bytes(bytes([third.read_bytes()[0] ^ 1]) + third.read_bytes()[1:])
    assert sorted(compiled_by_a_start(cache)) == sorted(path.stem for path in (first, second, third))
    assert compiled_by_a_start(cache) == []


def test_a_folder_that_others_can_write_to_is_not_used_and_that_is_told(cache: Path) -> None:
    compiled_by_a_start(cache)
    cache.chmod(0o770)
    compiled, note = start(cache)
    assert compiled == compiled_by_a_start(None)
    assert note == f"they are compiled at every start, because {cache} is not safe: others can write to it"


def test_other_sources_have_another_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled_by_a_start(cache)
    monkeypatch.setattr(library, "digest_of_sources", lambda: "changed")
    assert compiled_by_a_start(cache) == first
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(cache: Path) -> None:
    cache.touch()  # a file is where the folder should be
    assert compiled_by_a_start(cache) == compiled_by_a_start(None)


def test_a_disk_that_is_full_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", full)
    assert compiled_by_a_start(cache)
    assert list(cache.glob("*/*")) == []


def test_a_layout_that_means_something_else_is_compiled_anew(cache: Path) -> None:
    compiled_by_a_start(cache)
    assert len(compiled_by_a_start(cache, zero_point=7)) == 1


def test_the_digest_is_one_of_all_sources() -> None:
    assert re.fullmatch("[0-9a-f]{16}", library.digest_of_sources())
