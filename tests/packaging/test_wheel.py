"""The wheel, installed where nothing else is."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("engine", "app", "bench", "resources", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    source, wheels, environment = (folder / name for name in ("source", "wheels", "environment"))
    # A copy, as setuptools builds in the tree and would take up what an earlier build left there.
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(source)]
    subprocess.run([*pip, *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = wheels.iterdir()
    found = environment / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([*pip, "--python", found / "python", "install", wheel], check=True)
    return found


@pytest.mark.parametrize("program", ["dormouse", "dormouse-cli"])
def test_the_wheel_starts(programs: Path, tmp_path: Path, program: str) -> None:
    started = subprocess.run(
        [programs / program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] in started.stdout


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
