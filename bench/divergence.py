"""How far next-token distributions are from those of exact arithmetic, ours and the peer's.

The text is chapter VII of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865), which is in the public domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bench.peer import Peer
from bench.speed import N_UBATCH
from engine import paths
from engine.arrays import F32, TokenIds
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels, load_kernels
from engine.kernels.choice import PORTABLE
from engine.models import Model, load_model
from engine.tokenizer.tokenizer import Tokenizer, load_tokenizer

MOST_TOKENS = 2000
_N_BEST = 400
_N_ROWS = 32  # of logits that are held at once: a vocabulary can be large
_LEAST = 1e-12  # probability of the rest, where rounding leaves nothing of it


@dataclass(frozen=True)
class Divergence:
    """Mean Kullback-Leibler divergences, in nats, from the reference over the n tokens of a text."""

    n: int
    ours: float
    peer: float


def measure_divergence(
    path: Path, kernels_name: str, *, n_threads: int, progress: Callable[[int, int], None]
) -> Divergence:
    """Compare the kernels, and the peer, with float32 weights, activations and K/V rows.

    The text is as long as the model's context allows, at most 2,000 tokens. Raises DormouseError.
    """
    reference, tokenizer = _load(path, load_kernels(PORTABLE, n_threads=n_threads))
    ours, _ = _load(path, load_kernels(kernels_name, n_threads=n_threads, cache_folder=paths.kernels_folder()))
    token_ids = _text(tokenizer)[: min(MOST_TOKENS, ours.config.n_ctx_train - 1)]
    rows = zip(_logits(reference, token_ids, np.float32), _logits(ours, token_ids, np.float16), strict=True)
    totals = np.zeros(2)
    with Peer(path, n_ctx=len(token_ids) + 1, n_threads=n_threads, n_parallel=1, cache_ram_mib=0) as peer:
        # the peer tells nothing where it samples half a character: let it always sample a letter
        options = {"logit_bias": [[peer.tokenize("a", parse_special=False)[-1], 1000]]}
        for i, (expected, found) in enumerate(rows):
            best = np.argpartition(found, -min(_N_BEST, len(found)))[-_N_BEST:]
            ids, log_q = zip(*peer.next_logprobs(token_ids[: i + 1], _N_BEST, **options), strict=True)
            log_p = expected.astype(np.float64) - _log_of_sum(expected)
            totals += (
                kl_divergence(log_p[best], found[best].astype(np.float64) - _log_of_sum(found)),
                kl_divergence(log_p[list(ids)], np.array(log_q)),
            )
            progress(i + 1, len(token_ids))
    for model in (reference, ours):
        model.kernels.close()
    kl_ours, kl_peer = (totals / len(token_ids)).tolist()
    return Divergence(len(token_ids), kl_ours, kl_peer)


def _load(path: Path, kernels: Kernels) -> tuple[Model, Tokenizer]:
    with open_gguf(path) as gguf:
        return load_model(gguf, kernels).model, load_tokenizer(gguf)


def _text(tokenizer: Tokenizer) -> TokenIds:
    text = (resources.files("resources") / "mad-tea-party.txt").read_text(encoding="utf-8")
    vocabulary = tokenizer.vocabulary
    bos = [vocabulary.special.bos_id] if vocabulary.add_bos else []
    return np.array([*bos, *tokenizer.encode(text, parse_special=False)], np.int32)


def _logits(model: Model, token_ids: TokenIds, kv_type: DTypeLike) -> Iterator[F32]:
    """Yield the logits behind each token, (n_vocab,)."""
    memory = model.new_memory(kv_type)
    for start in range(0, len(token_ids), N_UBATCH):
        hidden = model.forward(token_ids[start : start + N_UBATCH], memory)
        for row in range(0, len(hidden), _N_ROWS):
            yield from model.logits(hidden[row : row + _N_ROWS])


def _log_of_sum(logits: F32) -> float:
    """Return the logarithm of the sum of e**logits."""
    best = logits.max()
    return float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))


def kl_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    """Return the divergence of q from p over some tokens and one more event, that it is none of them."""
    p, q = np.exp(log_p), np.exp(log_q)
    rest_p, rest_q = (max(1 - float(x.sum()), _LEAST) for x in (p, q))
    return float(np.sum(p * (log_p - log_q))) + rest_p * float(np.log(rest_p / rest_q))
