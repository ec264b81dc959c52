"""What every test gets: the real models, and a home of its own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from engine.errors import DormouseError
from engine.starter import ModelEntry, fetch_model, read_entry, starter_entry

# Resolved at import, before any test has a HOME of its own.
MODELS_FOLDER = Path(os.environ.get("DORMOUSE_TEST_MODELS") or user_cache_path("dormouse") / "test-models")
KERNELS_FOLDER = user_cache_path("dormouse") / "test-kernels"
os.environ["DORMOUSE_KERNEL_CACHE"] = str(KERNELS_FOLDER)  # compiled once, not in every test's home
MODELS = {"smollm2": starter_entry(), "gemma3": read_entry(Path(__file__).parents[1] / "resources" / "gemma3.json")}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--walk-steps", type=int, default=2500, help="steps of the random walks over each kind of memory")


@pytest.fixture(scope="session")
def walk_steps(pytestconfig: pytest.Config) -> int:
    """How long the random walks are; see tests/engine/test_walk.py."""
    return int(pytestconfig.getoption("--walk-steps"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1: `llama` architecture, full attention, BPE vocabulary."""
    return MODELS_FOLDER / MODELS["smollm2"].file_name


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M Q4_K_M: sliding window of 512, SPM vocabulary of 262,144 tokens."""
    return MODELS_FOLDER / MODELS["gemma3"].file_name


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's settings and conversations out of every test's reach."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the models that the chosen tests use: here, where no test's timeout runs."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name in sorted(used & MODELS.keys()):
        _fetch(MODELS[name], session.config.get_terminal_writer().line)


def _fetch(entry: ModelEntry, tell: Callable[[str], None]) -> None:
    told = -1

    def progress(done: int, total: int) -> None:
        nonlocal told
        if (tenths := 10 * done // total) > told:
            told = tenths
            tell(f"fetching {entry.name}: {10 * tenths} %")

    try:
        fetch_model(entry, MODELS_FOLDER, progress=progress)
    except DormouseError as error:
        pytest.exit(str(error), returncode=1)
