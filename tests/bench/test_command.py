"""How the command line finds the benchmarks, and that the window's own one starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import main


@pytest.mark.parametrize("arguments", [["bench", "--model", "m.gguf"], ["bench", "--help"], ["simulate-retention"]])
@pytest.mark.parametrize("name", ["bench", "bench.command"])
def test_without_the_benchmarks_one_sentence_says_so(
    arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "bench.command", raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dormouse-cli: The benchmarks are not installed here")
    assert main(["--help"]) == 0
    assert "fetch-starter" in capsys.readouterr().out


def test_benchmarks_that_lack_something_do_not_pass_for_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bench.command", raising=False)
    monkeypatch.setitem(sys.modules, "bench.made", None)  # type: ignore[arg-type]
    with pytest.raises(ModuleNotFoundError, match=r"bench\.made"):
        main(["bench"])


def test_the_benchmark_of_the_window_starts() -> None:
    command = [sys.executable, "-m", "bench.window", "--help"]
    started = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert "usage: python -m bench.window" in started.stdout
