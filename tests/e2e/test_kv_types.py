"""Conversations whose K/V rows are kept in each type sleep and wake like any other."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.formats.gguf import open_gguf
from engine.kernels import load_kernels
from engine.kernels.kv_types import KV_TYPES
from engine.models import Model, load_model
from engine.tokenizer.tokenizer import load_tokenizer
from tests.e2e.conftest import Chat, run_cli
from tests.tiny_gguf import tokenizer_metadata, write_llama

TEXT = (Path(__file__).parents[1] / "data" / "tea-party.txt").read_text(encoding="utf-8")
GREEDY = ("--temperature", 0, "--max-tokens", 8)


@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_a_conversation_goes_on_with_the_same_bits(kv_type: str, tiny_llama: Path, tmp_path: Path, chat: Chat) -> None:
    options = (*GREEDY, "--kv-type", kv_type)
    live = chat(tiny_llama, *options, "--slot", tmp_path / "live.slot", say=["Who are you?", "And why?"])
    (first,) = chat(tiny_llama, *options, "--slot", tmp_path / "a.slot", "--prompt", "Who are you?")
    (second,) = chat(tiny_llama, *options, "--slot", tmp_path / "a.slot", "--prompt", "And why?")
    assert (second["source"], second["reason"]) == ("restored", "none")
    assert (second["cache_n"], second["prompt_n"]) == (live[1]["cache_n"], live[1]["prompt_n"])
    assert [first["logits_xxh3"], second["logits_xxh3"]] == [turn["logits_xxh3"] for turn in live]


def log_probabilities(model: Model, ids: NDArray[np.int32], kv_type: str) -> NDArray[np.float64]:
    logits = model.logits(model.forward(ids, model.new_memory(KV_TYPES[kv_type]))).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def test_the_next_token_hardly_depends_on_the_type(smollm2: Path) -> None:
    kernels = load_kernels("numpy")  # others round activations, which hides what the type does
    with open_gguf(smollm2) as gguf:
        ids = np.array(load_tokenizer(gguf).encode(TEXT, parse_special=False), np.int32)[:100]
        model = load_model(gguf, kernels).model
    exact = log_probabilities(model, ids, "f32")
    for kv_type, largest in (("f16", 1e-5), ("q8_0", 2e-3), ("q4_0", 0.2)):
        other = log_probabilities(model, ids, kv_type)
        assert np.sum(np.exp(exact) * (exact - other), axis=1).mean() < largest
    kernels.close()


def test_a_type_that_does_not_fit_the_model_is_refused_before_the_first_message(smollm2: Path, tmp_path: Path) -> None:
    model, file = write_llama(tmp_path / "tiny.gguf", tokenizer_metadata(smollm2)), tmp_path / "a.slot"
    run = run_cli("chat", "--model", model, "--slot", file, "--kv-type", "q8_0", "--prompt", "Hello")
    assert run.status == 1
    assert "q8_0" in run.stderr
    assert "choose f16" in run.stderr
    assert run_cli("chat", "--model", model, "--slot", file, *GREEDY, "--prompt", "Hello").status == 0
