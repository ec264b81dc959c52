"""The models against llama.cpp, teacher-forced over real text."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.formats.gguf import open_gguf
from engine.kernels import load_kernels
from engine.models import load_model
from engine.tokenizer.tokenizer import load_tokenizer
from tests.gguf_copy import write_copy
from tests.peer import Peer

N_TOKENS = 500
TEXT = (Path(__file__).parent.parent / "data" / "tea-party.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Agreement:
    """How our next-token distributions compare with the peer's, over all positions of a text."""

    kl: float  # mean KL divergence from the peer's distribution, over its best candidates and one bucket for the rest
    top1: float  # share of positions with the same best token
    top1_clear: float  # the same where the peer's best is at least 0.2 nat ahead


def compare(path: Path) -> Agreement:
    """Evaluate the same ids here and there."""
    with open_gguf(path) as gguf:
        tokenizer = load_tokenizer(gguf)
        kernels = load_kernels()
        model = load_model(gguf, kernels).model
    bos = [tokenizer.vocabulary.special.bos_id] if tokenizer.vocabulary.add_bos else []
    ids = np.array([*bos, *tokenizer.encode(TEXT, parse_special=False)], np.int32)[:N_TOKENS]
    assert len(ids) == N_TOKENS
    logits = model.logits(model.forward(ids, model.new_memory()))
    kernels.close()
    ours = logits.astype(np.float64)
    ours -= ours.max(axis=1, keepdims=True)
    ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
    with Peer(path, n_ctx=1024) as peer:
        theirs = [peer.next_logprobs(ids[: i + 1]) for i in range(N_TOKENS)]
    kl, same, clear = [], [], []
    for row, candidates in zip(ours, theirs, strict=True):
        best, log_p = (np.array(column) for column in zip(*candidates, strict=True))
        log_q = row[best]
        kl.append(float(np.sum(np.exp(log_p) * (log_p - log_q))) + _rest(log_p, log_q))
        same.append(best[0] == row.argmax())
        clear.append(log_p[0] - log_p[1] >= 0.2)
    agree = np.array(same)
    return Agreement(float(np.mean(kl)), float(agree.mean()), float(agree[np.array(clear)].mean()))


def _rest(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    p, q = (max(1 - float(np.exp(x).sum()), 1e-12) for x in (log_p, log_q))
    return p * float(np.log(p / q))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_float32_weights_agree_almost_exactly(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    copy = write_copy(request.getfixturevalue(name), tmp_path / f"{name}.gguf")
    agreement = compare(copy)
    assert agreement.kl < 1e-4
    assert agreement.top1 >= 0.99


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_quantized_weights_agree_but_for_the_rounding_of_activations(name: str, request: pytest.FixtureRequest) -> None:
    agreement = compare(request.getfixturevalue(name))
    assert agreement.kl < 0.01
    assert agreement.top1 >= 0.92
    assert agreement.top1_clear >= 0.98
