"""The layering of the house: who may know whom."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QT = {"PySide6", "shiboken6", "pyqtgraph"}
FLOORS = (
    {"arrays", "errors", "helper", "paths", "private_file", "private_key", "starter", "version"},
    {"formats"},
    {"kernels"},
    {"quants"},
    {"tokenizer"},
    {"memory"},
    {"models"},
    {"slot"},
    {"generate", "sampling"},
    {"runtime", "events", "jobs"},
    {"replay"},
    {"conversation"},
    {"opening", "turn"},
    {"session"},
    {"cli"},
)
"""The parts of the engine from the ground up; each knows its own floor and those below."""


SLOT_FLOORS = (
    {"records", "transcript"},
    {"segments", "retention", "next_tokens"},
    {"file"},
    {"marks", "prefix_index"},
    {"archive"},
    {"reuse", "pruning", "reading"},
    {"spot_check"},
    {"slot"},
    {"donors"},
)
"""The same for what is in engine/slot/: the live side stands on the file."""


APP_FLOORS = (
    {"bridge", "resources"},
    {"library", "opening_mark", "settings", "single_instance"},
    {"widgets"},
    {"crash"},
    {"state"},
    {"panels"},
    {"dialogs"},
    {"menus"},
    {"window"},
    {"main"},
)
"""The same for the window."""


BENCH_FLOORS = (
    {"dot_loop", "footprint", "llama_server_slot", "model_file", "peer_server", "shapes", "speed", "window"},
    {"made", "peer", "roofline", "simulation", "sleep"},
    {"divergence", "report", "worker"},
    {"against", "alone", "restore", "simulate"},
    {"command", "table"},
)
"""The same for the benchmarks, which stand above engine and app."""


HOUSES = {"engine": FLOORS, "app": APP_FLOORS, "bench": BENCH_FLOORS}
"""The packages, each of which may also know those before it."""


OPTIONAL = {"bench/peer_server.py": {"xllamacpp"}}
"""What a module may import that only the tests install."""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def all_modules() -> list[Path]:
    return [module for package in HOUSES for module in modules(package)]


def imports(module: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever in it: `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} hides behind a relative import whom it knows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(module: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)}


def level(part: str, floors: tuple[set[str], ...]) -> int:
    levels = [number for number, floor in enumerate(floors) if part in floor]
    assert levels, f"{part} has no place in the floors"
    return levels[0]


@pytest.mark.parametrize("module", all_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_floors_know_only_floors_below(module: Path) -> None:
    package, part = module.relative_to(ROOT).with_suffix("").parts[:2]
    floors = HOUSES[package]
    known = {name.split(".")[1] for name in imports(module) if name.startswith(f"{package}.")}
    own = -1 if part == "__init__" else level(part, floors)
    assert not {other for other in known if level(other, floors) > own}


@pytest.mark.parametrize("module", modules("engine/slot"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_live_side_of_a_slot_stands_on_its_file(module: Path) -> None:
    part = module.relative_to(ROOT).with_suffix("").parts[2]
    known = {name.split(".")[2] for name in imports(module) if name.startswith("engine.slot.")}
    own = -1 if part == "__init__" else level(part, SLOT_FLOORS)
    assert not {other for other in known if level(other, SLOT_FLOORS) > own}


@pytest.mark.parametrize("package", HOUSES)
def test_a_package_knows_only_those_below(package: str) -> None:
    above = set(list(HOUSES)[list(HOUSES).index(package) + 1 :])
    for module in modules(package):
        assert not packages(module) & above, module


def test_only_the_window_knows_qt() -> None:
    others = [module for folder in ("engine", "bench", "packaging", "resources") for module in modules(folder)]
    for module in others:
        # the benchmark of the window stands in for the person before it
        if module != ROOT / "bench" / "window.py":
            assert not packages(module) & (QT | {"app"}), module


def test_widgets_know_no_engine() -> None:
    for module in modules("app/widgets"):
        assert "engine" not in packages(module), module


def test_state_knows_no_widgets() -> None:
    for module in modules("app/state"):
        assert not [name for name in imports(module) if name.startswith(("app.widgets", "PySide6.QtWidgets"))], module


def test_nothing_maps_files() -> None:
    # Where a mapped file is cut short, or its disk fails, the process ends when it looks there.
    for module in all_modules():
        assert not packages(module) & {"mmap"}, module


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {canonical(requirement.partition("==")[0]) for requirement in project["dependencies"]}
    distributions = packages_distributions()
    ours = HOUSES.keys() | sys.stdlib_module_names
    for module in all_modules():
        for package in packages(module) - ours - OPTIONAL.get(module.relative_to(ROOT).as_posix(), set()):
            assert {canonical(name) for name in distributions[package]} & declared, f"{package} in {module}"


def test_development_folders_are_no_packages() -> None:
    # They would shadow PyPI's `packaging`, which pytest itself imports, and our own packages.
    assert not [path for folder in ("tests", "packaging") for path in (ROOT / folder).rglob("__init__.py")]
