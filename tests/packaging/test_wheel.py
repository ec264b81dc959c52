"""The wheel, installed where nothing else is."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from tests.only_one import only_one

ROOT = Path(__file__).parents[2]
SOURCES = ("engine", "app", "bench", "resources", "pyproject.toml", "README.md", "LICENSE")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# At import, before any test has a HOME of its own: how the user has pip download, and where things are kept.
USERS_ENVIRONMENT = dict(os.environ)
ENVIRONMENTS = user_cache_path("dormouse") / "test-wheel"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs of an environment that holds the wheel and what it asks for.

    It is kept, and only the wheel is installed anew, as long as that asks for the same on the same Python.
    """
    asked = hashlib.sha256(repr((PROJECT["dependencies"], sys.version, sys.prefix)).encode()).hexdigest()
    with only_one(ENVIRONMENTS / asked[:16]):
        yield install(tmp_path_factory.mktemp("wheel"), ENVIRONMENTS / asked[:16])


def install(folder: Path, kept: Path) -> Path:
    """Build the wheel in a folder, and install it in the environment that is kept in another; return its programs."""
    source, wheels, environment, marker = folder / "source", folder / "wheels", kept / "environment", kept / "complete"
    # A copy, as setuptools builds in the tree and would take up what an earlier build left there.
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(source)]
    subprocess.run([*pip, *build], check=True, env=USERS_ENVIRONMENT)
    (wheel,) = wheels.iterdir()
    found = environment / ("Scripts" if os.name == "nt" else "bin")
    into = [*pip, "--python", found / "python"]
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", environment], check=True)
        subprocess.run([*into, "install", wheel], check=True, env=USERS_ENVIRONMENT)
        marker.touch()
    subprocess.run([*into, "install", "--no-deps", "--force-reinstall", wheel], check=True, env=USERS_ENVIRONMENT)
    subprocess.run([*into, "check"], check=True, stdout=subprocess.DEVNULL)
    return found


@pytest.mark.parametrize("program", ["dormouse", "dormouse-cli"])
def test_the_wheel_starts(programs: Path, tmp_path: Path, program: str) -> None:
    started = subprocess.run(
        [programs / program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert PROJECT["version"] in started.stdout


@pytest.mark.parametrize("command", ["bench", "simulate-retention"])
def test_the_wheel_holds_the_benchmarks(programs: Path, tmp_path: Path, command: str) -> None:
    started = subprocess.run(
        [programs / "dormouse-cli", command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"usage: dormouse-cli {command}" in started.stdout


def test_the_wheel_holds_the_resources(programs: Path, tmp_path: Path) -> None:
    code = "from engine.starter import starter_entry; print(starter_entry().file_name)"
    started = subprocess.run(
        [programs / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert started.stdout.endswith(".gguf\n")
