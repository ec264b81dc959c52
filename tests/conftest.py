"""What every test gets: real and tiny models, and a home of its own."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which share the cores
    os.environ["DORMOUSE_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from engine.errors import DormouseError
from engine.paths import data_folder
from engine.private_file import create_private
from engine.starter import ModelEntry, fetch_model, read_entry, starter_entry
from tests.models import full_attention, windowed
from tests.only_one import only_one

# Resolved at import, before any test has a HOME of its own.
MODELS_FOLDER = Path(os.environ.get("DORMOUSE_TEST_MODELS") or user_cache_path("dormouse") / "test-models")
KERNELS_FOLDER = user_cache_path("dormouse") / "test-kernels"
os.environ["DORMOUSE_KERNEL_CACHE"] = str(KERNELS_FOLDER)  # compiled once, not in every test's home
KEY = b"the key of all tests' homes     "  # so that each takes what another one has compiled for its own
MODELS = {"smollm2": starter_entry(), "gemma3": read_entry(Path(__file__).parents[1] / "resources" / "gemma3.json")}
N_CTX = 8192  # of the tiny models
LONG = (
    "e2e/test_sleep_and_wake",
    "engine/test_models",
    "engine/test_families",
    "engine/test_single_tokens",
    "engine/test_slot_fuzz",
    "engine/test_walk",
    "packaging/test_wheel",
)
"""Files of tests that take longest: they begin, lest one of them is left to one process at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--walk-steps", type=int, default=2000, help="steps of the random walks over each kind of memory")
    parser.addoption("--forged-files", type=int, default=400, help="how many forged slot files are opened")
    parser.addoption("--template-seconds", type=float, default=0.1, help="seconds that templates without an end get")
    parser.addoption("--model-mutations", type=int, default=300, help="model files made wrong that are loaded and used")
    parser.addoption("--instruction-set", help="the double that stands in for the fastest kernels")


def pytest_configure(config: pytest.Config) -> None:
    """Let a double stand in, if one is named; see tests/instruction_sets.py."""
    if name := config.getoption("--instruction-set"):
        os.environ["DORMOUSE_TEST_INSTRUCTION_SET"] = name
        from tests.instruction_sets import stand_in  # noqa: PLC0415 - loads the compiler

        stand_in()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests counted (`record_property("figures", ...)`), in whichever process they ran."""
    for report in terminalreporter.getreports("passed"):
        for name, figures in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(f"{figures}")


@pytest.fixture(scope="session")
def walk_steps(pytestconfig: pytest.Config) -> int:
    """How long the random walks are; see tests/engine/test_walk.py."""
    return int(pytestconfig.getoption("--walk-steps"))


@pytest.fixture(scope="session")
def n_forged_files(pytestconfig: pytest.Config) -> int:
    """How many forged slot files are opened; see tests/e2e/test_forged_files.py."""
    return int(pytestconfig.getoption("--forged-files"))


@pytest.fixture(scope="session")
def template_seconds(pytestconfig: pytest.Config) -> float:
    """How much of the processor's time a template may take; see tests/engine/test_template_process.py."""
    return float(pytestconfig.getoption("--template-seconds"))


@pytest.fixture(scope="session")
def n_model_mutations(pytestconfig: pytest.Config) -> int:
    """How many model files are made wrong; see tests/engine/test_model_fuzz.py."""
    return int(pytestconfig.getoption("--model-mutations"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1: `llama` architecture, full attention, BPE vocabulary."""
    return MODELS_FOLDER / MODELS["smollm2"].file_name


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M Q4_K_M: sliding window of 512, SPM vocabulary of 262,144 tokens."""
    return MODELS_FOLDER / MODELS["gemma3"].file_name


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with full attention that never ends a reply; its tokens are letters."""
    model = full_attention.llama().never_ending(n_ctx=N_CTX)
    return model.write(tmp_path_factory.mktemp("models") / "tiny-llama.gguf")


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a sliding window of 24 tokens."""
    model = windowed.gemma3().never_ending(n_ctx=N_CTX)
    return model.write(tmp_path_factory.mktemp("models") / "tiny-gemma3.gguf")


@pytest.fixture(autouse=True, scope="session")
def _home_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's settings and conversations out of reach of what several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        _set_home(patch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep them out of every test's reach, and the tests out of each other's."""
    home = tmp_path / "home"
    home.mkdir()
    _set_home(monkeypatch, home)


def _set_home(patch: pytest.MonkeyPatch, home: Path) -> None:
    patch.setenv("HOME", str(home))
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        patch.delenv(f"XDG_{kind}_HOME", raising=False)
    create_private(data_folder() / "key", KEY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the long files come first."""
    root = Path(__file__).parent
    ranks = {root / f"{name}.py": rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONG)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the models that the chosen tests use: here, where no test's timeout runs."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = sorted(used & MODELS.keys())
    if wanted:
        with only_one(MODELS_FOLDER):
            for name in wanted:
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
