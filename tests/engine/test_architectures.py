"""Tiny models of the attention architectures against llama.cpp, with every feature of theirs switched on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from engine.kernels import Kernels, load_kernels
from tests.gguf_copy import write_copy
from tests.models import full_attention, windowed
from tests.models.agreement import difference

MODELS = full_attention.MODELS | windowed.MODELS


@pytest.fixture(scope="module", params=["numpy", None], ids=["portable", "fastest"], name="kernels")
def _kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    kernels = load_kernels(request.param, n_threads=1)
    yield kernels
    kernels.close()


@pytest.mark.parametrize("name", MODELS)
def test_float32_weights_agree(name: str, kernels: Kernels, tmp_path: Path) -> None:
    model = MODELS[name]().write(tmp_path / "model.gguf")
    found = difference(model, kernels)
    assert found.greatest < 0.01
    assert found.top1 <= 0.01


def test_mxfp4_experts_agree_with_the_same_in_float32(tmp_path: Path) -> None:
    kernels = load_kernels("numpy", n_threads=1)  # which round no activations
    model = windowed.gpt_oss(GGMLQuantizationType.MXFP4).write(tmp_path / "model.gguf")
    found = difference(model, kernels, peer_model=write_copy(model, tmp_path / "copy.gguf"))
    kernels.close()
    assert found.greatest < 0.01
    assert found.top1 <= 0.01
