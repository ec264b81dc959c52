"""The table of benchmarks, filled by benchmarks that are not run."""

import json
import subprocess
from typing import Any

import pytest

from bench import table
from engine.errors import DormouseError

REPORT = {
    "processor": "Some Processor, 2 cores",
    "kernels_identity": "avx2/1",
    "threads": 2,
    "peer": "xllamacpp 1.0",
    "runs": 3,
    "results": [
        {"test": "decode", "n": 64, "depth": 0, "ours_tps": 80.04, "peer_tps": 40.0, "ratio": 2.001},
        {"test": "prefill", "n": 512, "depth": 0, "ours_tps": 1234.5, "peer_tps": 600.0, "ratio": 2.058},
        {"test": "prefill", "n": 4096, "depth": 0, "ours_tps": 900.0, "peer_tps": 1000.0, "ratio": 0.9},
    ],
    "load_s": 0.5,
    "peer_load_s": 0.25,
    "file_bytes": 1000,
    "weight_bytes": 1020,
    "kl_ours": 0.00012,
    "kl_peer": 0.0034,
    "gap_ms": None,
    "limits": {"decode_fraction": 0.9, "prefill_fraction": None},
}


class FakeBench:
    """Stand in for `subprocess.run`: every benchmark gives the same report, one whose options hold `fails` none."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.fails = "no option"

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.commands.append(line)
        fails = self.fails in line
        return subprocess.CompletedProcess(command, int(fails), "" if fails else json.dumps(REPORT))


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    fake = FakeBench()
    monkeypatch.setattr(table, "fetch_model", lambda entry, folder: folder / entry.file_name)
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


def test_models_types_and_shapes_are_measured(bench: FakeBench) -> None:
    assert table.main(["--runs", "3", "--quick"]) == 0
    assert len(bench.commands) == 10
    for line in bench.commands:
        assert "bench --against xllamacpp --json" in line
        assert line.endswith("--runs 3 --no-kl --no-gap")
    chosen = [line.partition(" --depth 4096 ")[2].partition(" --runs ")[0] for line in bench.commands]
    assert [options for options in chosen if options.startswith("--shape mamba2-130m")] == [
        "--shape mamba2-130m --type q8_0 --depth 0",
        "--shape mamba2-130m --type q4_0 --depth 0",
    ]
    assert [options.partition(".gguf")[2] for options in chosen[:4]] == ["", " --type q8_0", " --type q4_0", ""]


def test_the_table(bench: FakeBench, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([]) == 0
    assert bench.commands[0].endswith("--runs 5")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "| model | prefill 512 | prefill 4,096 | decode at 0 | decode at 4,096 |"
    assert shown[1] == "|---|---:|---:|---:|---:|"
    assert shown[2] == "| SmolLM2 135M Instruct (Q4_1) | 1,234.5 (2.06) | 900.0 (0.90) | 80.0 (2.00) | – |"
    assert shown[-1] == "| mamba2-130m, random, q4_0 | 0.000120 / 0.003400 | 0.50 / 0.25 | 1.02 | – | 90% | – |"
    assert "- machine: Some Processor, 2 cores; 2 threads" in shown


def test_a_failure_is_told_and_the_others_go_on(bench: FakeBench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.fails = "lfm2-350m --type q4_0"
    assert table.main([]) == 1
    captured = capsys.readouterr()
    assert len(bench.commands) == 10
    assert captured.err.endswith("could not be measured: lfm2-350m, random, q4_0\n")
    assert "lfm2-350m, random, q8_0" in captured.out
    assert "lfm2-350m, random, q4_0" not in captured.out

    bench.fails = "bench"
    assert table.main([]) == 1
    assert capsys.readouterr().out == ""


def test_a_model_that_can_not_be_fetched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise DormouseError("There is no connection.")

    monkeypatch.setattr(table, "fetch_model", refuse)
    assert table.main([]) == 1
    assert capsys.readouterr().err.endswith("bench: There is no connection.\n")
