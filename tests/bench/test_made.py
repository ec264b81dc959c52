"""Benchmarks of models that are made for them: copies in another tensor type, and random weights in a known shape."""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quantize

from bench.made import TYPES, with_model, write_copy, write_random
from bench.model_file import is_matrix
from bench.peer import Peer
from bench.shapes import SHAPES, Shape, lfm2, mamba2, qwen35
from engine.cli import main
from engine.errors import DormouseError
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels, load_kernels
from engine.runtime import EngineSettings, Runtime
from tests.e2e.conftest import run_cli
from tests.tiny_gguf import small_spm, write_llama

SMALL: Mapping[str, Shape] = {
    "lfm2": lfm2(n_vocab=500, n_embd=64, n_ff=96, n_head=2, n_head_kv=[0, 1], n_ctx=256),
    "qwen35": qwen35(
        n_vocab=500,
        n_layer=4,
        n_embd=64,
        n_ff=96,
        n_head=2,
        n_head_kv=1,
        head_dim=64,
        n_delta_head=2,
        d_state=32,
        n_ctx=256,
    ),
    "mamba2": mamba2(n_vocab=500, n_layer=2, n_embd=64, d_inner=128, d_state=32, n_head=2, n_ctx=256),
}
N_WEIGHTS = {"lfm2-350m": 354_483_968, "qwen3.5-0.8b": 752_393_024, "mamba2-130m": 128_989_632}
SIZES = ("--n-prompt", 40, "--n-gen", 8, "--runs", 1)


@pytest.fixture(scope="module", name="tiny")
def _tiny(gemma3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", small_spm(gemma3))


@pytest.fixture(scope="module", name="kernels")
def _kernels() -> Iterator[Kernels]:
    kernels = load_kernels("numpy", n_threads=1)
    yield kernels
    kernels.close()


def tensor_types(path: Path) -> dict[str, GGMLQuantizationType]:
    with open_gguf(path) as file:
        return {name: info.type for name, info in file.tensors.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--model", "m.gguf", "--shape", "lfm2-350m"],
        ["--shape", "gpt-5"],
        ["--model", "m.gguf", "--type", "q4_k"],
    ],
)
def test_wrong_usage(wrong: list[str]) -> None:
    assert main(["bench", *wrong]) == 2


@pytest.mark.parametrize("name", TYPES)
def test_every_type_can_be_written(name: str, tiny: Path, tmp_path: Path, kernels: Kernels) -> None:
    write_copy(tiny, tmp_path / "copy.gguf", TYPES[name])
    for tensor, kind in tensor_types(tmp_path / "copy.gguf").items():
        assert kind == (GGMLQuantizationType.F32 if "norm" in tensor else TYPES[name]), tensor
    with open_gguf(tiny) as original, open_gguf(tmp_path / "copy.gguf") as copy:
        assert original.metadata.keys() == copy.metadata.keys()
        weights = original.tensor_bytes("blk.0.attn_q.weight").view(np.float32).reshape(32, 32)
        assert copy.tensor_bytes("blk.0.attn_q.weight").tobytes() == quantize(weights, TYPES[name]).tobytes()
    Runtime.load(tmp_path / "copy.gguf", kernels, EngineSettings())


@pytest.mark.parametrize("name", N_WEIGHTS)
def test_shapes_are_as_large_as_the_published_models(name: str) -> None:
    assert sum(prod(shape) for shape in SHAPES[name].tensors.values()) == N_WEIGHTS[name]


@pytest.mark.parametrize("name", SHAPES)
def test_all_but_small_parts_of_a_shape_are_matrices(name: str) -> None:
    others = {tensor: shape for tensor, shape in SHAPES[name].tensors.items() if not is_matrix(tensor, shape)}
    assert max(prod(shape) for shape in others.values()) < 50_000
    assert not [tensor for tensor in others if "ffn" in tensor and "norm" not in tensor]


@pytest.mark.parametrize("name", SMALL)
def test_a_random_model_loads_here_and_there(name: str, tmp_path: Path, kernels: Kernels) -> None:
    path, ids = tmp_path / "random.gguf", np.arange(3, 60, dtype=np.int32)
    write_random(SMALL[name], path, GGMLQuantizationType.Q8_0)
    assert {GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0} == set(tensor_types(path).values())
    model = Runtime.load(path, kernels, EngineSettings()).model
    logits = model.logits(model.forward(ids, model.new_memory())[-1:])[0].astype(np.float64)
    with Peer(path, n_ctx=256, n_threads=1, n_parallel=1) as peer:
        # of half a character the peer says nothing: let it always sample a word
        best, expected = zip(*peer.next_logprobs(ids, 10, logit_bias=[[400, 1000]]), strict=True)
    assert logits[list(best)] - np.log(np.exp(logits).sum()) == pytest.approx(expected, abs=0.2)


def test_a_random_model_is_measured_without_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SHAPES, "small", SMALL["lfm2"])  # type: ignore[arg-type]
    arguments = Namespace(model=None, shape="small", type=None, no_kl=False, no_gap=False)
    changed = with_model(arguments, tmp_path)
    assert (changed.name, changed.no_kl, changed.no_gap) == ("small with random weights as q8_0", True, True)
    assert tensor_types(changed.model)["token_embd.weight"] == GGMLQuantizationType.Q8_0


def test_a_model_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match="can't be opened"):
        with_model(Namespace(model=tmp_path / "m.gguf", shape=None, type="q4_0"), tmp_path)
    with pytest.raises(DormouseError, match="can't be written"):
        write_random(SMALL["mamba2"], tmp_path / "no folder" / "m.gguf", GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize(
    "mode", [[], ["--restore", "--depth", 100], ["--against", "xllamacpp", "--depth", 0, "--no-kl", "--no-gap"]]
)
def test_every_mode_measures_the_copy_and_leaves_none(
    mode: list[object], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = run_cli("bench", "--model", tiny, "--type", "q8_0", *SIZES, *mode, "--json")
    assert run.status == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["model"] == f"{tiny} as q8_0"
    assert not list(tmp_path.rglob("*.gguf"))
    if "--against" in mode:
        assert report["file_bytes"] < tiny.stat().st_size
