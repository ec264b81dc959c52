"""The benchmark against llama.cpp, on a tiny model."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.against import peer_seconds
from bench.peer import Peer, PeerError
from bench.speed import Workload
from engine.cli import main
from tests.e2e.conftest import run_cli
from tests.tiny_gguf import N_CTX, small_spm, write_llama

SIZES = ("--n-prompt", 40, "--n-gen", 8, "--runs", 1)


@pytest.fixture(scope="module", name="tiny")
def _tiny(gemma3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", small_spm(gemma3))


def compare(model: Path, *options: object) -> dict[str, Any]:
    run = run_cli("bench", "--model", model, "--against", "xllamacpp", *SIZES, *options, "--json")
    assert run.status == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def test_both_are_measured(tiny: Path) -> None:
    report = compare(tiny, "--depth", 100, "--threads", 1)
    places = [(result["test"], result["n"], result["depth"]) for result in report["results"]]
    assert places == [("decode", 8, 0), ("prefill", 40, 0), ("prefill", 100, 0), ("decode", 8, 100)]
    for result in report["results"]:
        assert result["ratio"] == pytest.approx(result["ours_tps"] / result["peer_tps"], rel=0.01)
    assert report["model"] == str(tiny)
    assert report["threads"] == 1
    assert report["peer"].startswith("xllamacpp 20")
    assert report["load_s"] > 0
    assert report["peer_load_s"] > 0
    assert 0 < report["weight_bytes"] < 2 * report["file_bytes"]
    assert report["peak_rss_mb"] is None or report["peak_rss_mb"] > 0
    assert report["limits"]["read_gb_s"] > 0
    assert report["kl_n"] == N_CTX - 1
    assert 0 <= report["kl_ours"] < 0.001
    assert 0 <= report["kl_peer"] < 0.001
    assert report["gap_ms"] is None
    assert "gap of the event loop" in "".join(report["skipped"])


def test_what_the_context_does_not_hold_is_left_out_with_a_word(tiny: Path) -> None:
    report = compare(tiny, "--kernels", "numpy", "--depth", N_CTX, "--no-kl", "--no-gap")
    assert report["kernels"] == "numpy"
    assert [result["depth"] for result in report["results"]] == [0, 0]
    assert len(report["skipped"]) == 2
    assert "context is 256 tokens" in report["skipped"][0]
    assert (report["kl_n"], report["kl_ours"], report["kl_peer"]) == (0, None, None)
    assert report["limits"]["dot_gops"] is None


def test_people_get_a_table(tiny: Path) -> None:
    run = run_cli("bench", "--model", tiny, "--against", "xllamacpp", *SIZES, "--depth", 0, "--no-kl", "--no-gap")
    assert run.status == 0, run.stderr
    assert "prefill of 40 at depth 0" in run.stdout
    assert "ratio" in run.stdout


def test_nothing_fits(tiny: Path) -> None:
    run = run_cli("bench", "--model", tiny, "--against", "xllamacpp", "--n-prompt", 1000, "--n-gen", 1000)
    assert (run.status, "more than the model's context" in run.stderr) == (1, True)


def test_a_model_that_does_not_load_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no model")
    for name, words in (("m.gguf", "not a GGUF model file"), ("n.gguf", "can't be read")):
        run = run_cli("bench", "--model", tmp_path / name, "--against", "xllamacpp")
        assert run.status == 1
        assert words in run.stderr


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "--model", "m.gguf", "--against", "xllamacpp"]) == 1
    assert capsys.readouterr().err == (
        "dormouse-cli: xllamacpp is not installed here; “pip install xllamacpp” brings it.\n"
    )


def test_a_peer_that_does_less_than_was_asked_is_not_believed(tiny: Path) -> None:
    ids = np.arange(100, 200, dtype=np.int32)
    with Peer(tiny, n_ctx=256, n_threads=1, n_parallel=1) as peer:
        assert peer_seconds(peer, ids, Workload("decode", 8, 50)) > 0
        with pytest.raises(PeerError, match="generated"):
            peer_seconds(peer, ids, Workload("decode", 400, 50))
        with pytest.raises(PeerError, match="refuses"):
            peer.request("POST", "/completion", {"prompt": [1] * 1000})
    with pytest.raises(PeerError, match="did not start"):
        Peer(tiny.with_name("none.gguf")).start()
