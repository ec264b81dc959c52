"""Memory that one set of kernels computed, gone on with by another."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.formats.gguf import open_gguf
from engine.kernels import Kernels
from engine.memory import RowChunk
from engine.models import Model, load_model
from engine.tokenizer.tokenizer import load_tokenizer
from tests.instruction_sets import ALL, make_kernels

TEXT = (Path(__file__).parents[1] / "data" / "tea-party.txt").read_text(encoding="utf-8")
N_SLEPT, N_MORE = 120, 8  # tokens


@dataclass(frozen=True)
class Case:
    """One model on every set of kernels, and a text."""

    models: dict[str, Model]
    more: NDArray[np.int32]  # its last tokens
    slept: dict[str, dict[str, list[RowChunk]]]  # rows of the tokens before, by what computed them
    alone: dict[str, NDArray[np.float64]]  # log-probabilities behind the text, by what computed all of it


@pytest.fixture(scope="module", params=["smollm2", "gemma3"], name="case")
def _case(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Case]:
    path, loaded = request.getfixturevalue(request.param), list[Kernels]()
    models = {}
    with open_gguf(path) as gguf:
        token_ids = np.array(load_tokenizer(gguf).encode(TEXT, parse_special=False), np.int32)[: N_SLEPT + N_MORE]
        for name in ALL:
            loaded.append(make_kernels(name, n_threads=1, cache_folder=kernel_cache))
            models[name] = load_model(gguf, loaded[-1]).model
    slept, alone = {}, {}
    for name, model in models.items():
        memory = model.new_memory()
        model.forward(token_ids[:N_SLEPT], memory)
        slept[name] = {part.kind: [part.export_rows(part.first_row(N_SLEPT), N_SLEPT)] for part in memory.parts}
        alone[name] = log_probabilities(model, model.forward(token_ids[N_SLEPT:], memory))
    yield Case(models, token_ids[N_SLEPT:], slept, alone)
    for kernels in loaded:
        kernels.close()


def log_probabilities(model: Model, hidden: NDArray[np.float32]) -> NDArray[np.float64]:
    logits = model.logits(hidden).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return result


@pytest.mark.parametrize("awake", ALL)
@pytest.mark.parametrize("slept", ALL)
def test_what_others_computed_says_the_same(case: Case, slept: str, awake: str) -> None:
    model = case.models[awake]
    memory = model.new_memory()
    memory.restore(N_SLEPT, case.slept[slept], None)
    log_q = log_probabilities(model, model.forward(case.more, memory))
    log_p = case.alone[awake]
    assert np.mean((np.exp(log_p) * (log_p - log_q)).sum(axis=1)) < 0.01
    if slept == awake:
        assert np.array_equal(log_p, log_q)
