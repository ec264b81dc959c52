"""The benchmark of restoring, on a short conversation."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_cli


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_restored_conversation_evaluates_what_a_live_one_does(name: str, request: pytest.FixtureRequest) -> None:
    options = ("--model", request.getfixturevalue(name), "--depth", 700, "--runs", 1)
    run = run_cli("bench", "--restore", *options, "--json")
    assert run.status == 0, run.stderr
    report = json.loads(run.stdout)
    assert (report["n_tokens"], report["cold_n"], report["live_n"], report["restored_n"]) == (700, 700, 32, 32)
    assert 0 < report["state_bytes"] < report["file_bytes"]
    assert report["restored_ms"] < report["cold_ms"]
    assert {"live_ms", "load_ms", "model"} <= report.keys()


def test_a_context_too_short_is_refused(smollm2: Path) -> None:
    run = run_cli("bench", "--restore", "--model", smollm2, "--depth", 100_000, "--runs", 1)
    assert (run.status, "too short" in run.stderr) == (1, True)
