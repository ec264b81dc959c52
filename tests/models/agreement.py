"""How much the next-token distributions of a tiny model differ here and in llama.cpp."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.formats.gguf import open_gguf
from engine.kernels import Kernels
from engine.models import Model, load_model
from tests.models.tiny import N_VOCAB
from tests.peer import Peer

N_TOKENS = 256
N_PREFILL = 200  # in one ubatch; the others one by one
N_PROBS = 20


@dataclass(frozen=True)
class Difference:
    """Over all positions of a random text."""

    greatest: float  # of the log-probabilities of the peer's likeliest tokens
    top1: float  # share of positions with another best token


def token_ids() -> NDArray[np.int32]:
    """Return the text: any tokens but the special ones."""
    return np.random.default_rng(0).integers(5, N_VOCAB, N_TOKENS).astype(np.int32)


def log_probabilities(model: Model) -> NDArray[np.float64]:
    """Evaluate the text; return the log-probabilities of all tokens at each position."""
    ids, memory = token_ids(), model.new_memory(np.float32)
    ubatches = [ids[:N_PREFILL], *ids[N_PREFILL:, None]]
    logits = np.concatenate([model.logits(model.forward(ubatch, memory)) for ubatch in ubatches]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def difference(path: Path, kernels: Kernels, *, peer_model: Path | None = None) -> Difference:
    """Compare a model here and there, where `peer_model` may be another file of it.

    The peer keeps K and V in float32, without flash attention, which rounds them. Whatever is likely, it samples a
    letter: of half a character the server says nothing.
    """
    with open_gguf(path) as gguf:
        ours = log_probabilities(load_model(gguf, kernels).model)
    ids = token_ids()
    a_letter = {"logit_bias": [[N_VOCAB - 1, 1000]]}
    with Peer(peer_model or path, n_ctx=512, cache_type_k="f32", cache_type_v="f32", flash_attn="off") as peer:
        theirs = [peer.next_logprobs(ids[: i + 1], N_PROBS, **a_letter) for i in range(N_TOKENS)]
    greatest, others = 0.0, 0
    for row, candidates in zip(ours, theirs, strict=True):
        best, expected = (np.array(column) for column in zip(*candidates, strict=True))
        greatest = max(greatest, float(np.abs(row[best] - expected).max()))
        others += int(row.argmax() != best[0])
    return Difference(greatest, others / N_TOKENS)
