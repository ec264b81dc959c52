"""The user's folders."""

import stat
from pathlib import Path

import pytest

from engine import paths
from engine.errors import DormouseError

FOLDERS = (
    paths.data_folder,
    paths.models_folder,
    paths.library_folder,
    paths.cache_folder,
    paths.kernels_folder,
    paths.config_folder,
    paths.log_folder,
)


def test_folders_are_apart_and_private() -> None:
    made = [folder() for folder in FOLDERS]
    assert len(set(made)) == len(made)
    for path in made:
        assert path.is_relative_to(Path.home())
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert [folder() for folder in FOLDERS] == made


def test_the_folder_of_what_is_run_becomes_private() -> None:
    paths.kernels_folder().chmod(0o775)
    assert stat.S_IMODE(paths.kernels_folder().stat().st_mode) == 0o700


def test_folder_that_can_not_be_is_told() -> None:
    paths.data_folder().joinpath("models").write_text("a file")
    with pytest.raises(DormouseError, match="models can't be made"):
        paths.models_folder()
