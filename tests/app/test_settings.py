"""The settings: what is kept, and that no file breaks the start."""

import json
import os
from pathlib import Path

import pytest

from app.settings import DECLARATIONS, Settings
from engine.errors import DormouseError
from engine.paths import config_folder
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from tests.impostors import IMPOSTORS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def test_every_setting_is_declared_with_a_valid_default() -> None:
    assert [declaration.name for declaration in DECLARATIONS] == list(vars(Settings()))[: len(DECLARATIONS)]
    for declaration in DECLARATIONS:
        assert declaration.label
        assert declaration.accepts(declaration.default), declaration.name


def test_defaults_are_the_engines() -> None:
    settings = Settings()
    assert SamplingParameters(settings.temperature, settings.top_k, settings.top_p) == SamplingParameters()
    assert EngineSettings(settings.n_ctx, kv_type=settings.kv_type) == EngineSettings()


def test_nothing_there_gives_defaults(path: Path) -> None:
    assert Settings.load(path) == Settings()
    assert not path.exists()


def test_only_differences_are_saved_and_come_back(path: Path) -> None:
    settings = Settings.load(path)
    settings.zoom = 125
    settings.n_ctx = 4096
    settings.temperature = 1.0
    settings.save()
    assert json.loads(path.read_text()) == {"zoom": 125, "n_ctx": 4096, "temperature": 1.0}
    assert Settings.load(path) == settings


def test_file_is_private_and_alone(path: Path) -> None:
    Settings.load(path).save()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.glob("*settings*")) == [path]


def test_the_users_own_file_is_the_default_place() -> None:
    settings = Settings.load()
    settings.show_plot = False
    settings.save()
    assert (config_folder() / "settings.json").is_file()
    assert not Settings.load().show_plot


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_is_kept_aside(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert Settings.load(path) == Settings()
    assert path.with_name("settings.json.damaged").read_bytes() == content
    assert not path.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"zoom": "big"},
        {"zoom": 10_000},
        {"zoom": True},
        {"show_plot": 1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"kv_type": "q1"},
        {"n_ctx": 0},
        {"recent": "file"},
        {"recent": [1]},
        {"last_model": 3},
        {"zoom": None},
    ],
)
def test_wrong_values_are_default_and_leave_the_others(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps({"top_k": 7, **values}))
    assert Settings.load(path) == Settings(top_k=7)


def test_whole_numbers_are_numbers_too(path: Path) -> None:
    path.write_text('{"temperature": 1}')
    temperature = Settings.load(path).temperature
    assert (temperature, type(temperature)) == (1.0, float)


def test_unknown_keys_survive(path: Path) -> None:
    path.write_text('{"of_the_future": {"a": [1]}, "zoom": 110}')
    settings = Settings.load(path)
    settings.zoom = 100
    settings.save()
    assert json.loads(path.read_text()) == {"of_the_future": {"a": [1]}}


def test_recent_files_are_few_and_each_once(path: Path) -> None:
    settings = Settings.load(path)
    for number in range(12):
        settings.add_recent(f"{number}.slot")
    settings.add_recent("5.slot")
    assert settings.recent[:2] == ["5.slot", "11.slot"]
    assert len(settings.recent) == len(set(settings.recent)) == 10
    assert Settings().recent == []


def test_failure_to_save_is_told_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load(path)
    settings.zoom = 110
    settings.save()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    settings.zoom = 120
    with pytest.raises(DormouseError, match="No space left"):
        settings.save()
    assert Settings.load(path).zoom == 110
    assert list(path.parent.glob(".settings*")) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_no_file_is_moved_aside_without_being_opened(path: Path, kind: str) -> None:
    IMPOSTORS[kind](path)
    settings = Settings.load(path)
    assert settings == Settings()
    assert os.path.lexists(path.with_name("settings.json.damaged"))
    settings.zoom = 110
    settings.save()
    assert Settings.load(path).zoom == 110


def test_unreadable_file_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path.touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DormouseError, match="can't be read"):
        Settings.load(path)
