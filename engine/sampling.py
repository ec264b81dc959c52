"""Choosing the next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.errors import DormouseError

_RUN = 128  # ids whose greatest logit is looked at first


@dataclass(frozen=True)
class SamplingParameters:
    """How to choose; the defaults are llama.cpp's.

    temperature 0 takes the best token always. top_k 0 and top_p 1 switch these off.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    seed: int | None = None  # None: a new one for every reply

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise DormouseError(f"the temperature must be between 0 and 100, not {self.temperature}")
        if self.top_k < 0:
            raise DormouseError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise DormouseError(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise DormouseError(f"the seed must be between 0 and 2^64 - 1, not {self.seed}")


class Sampler:
    """Draws tokens by a counter-based generator (Philox, Salmon et al. 2011).

    The draw at a position depends on nothing but the seed, the version of the reply and the position, so that a
    conversation goes on identically after it slept, and another version of a reply is another one.
    """

    def __init__(self, parameters: SamplingParameters, *, version: int = 0) -> None:
        self._parameters = parameters
        seed = parameters.seed
        self._seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) if seed is None else seed
        self._version = version

    def sample(self, logits: F32, position: int) -> int:
        """Return the id of the token at `position`, given the logits (n_vocab) before it."""
        p = self._parameters
        if p.temperature == 0:
            return int(logits.argmax())
        ids, values = _top_k(logits, p.top_k)
        below_best = (values - values[0]).astype(np.float64)
        # as in llama.cpp, top-p looks at the distribution before the temperature
        cumulative = np.cumsum(np.exp(below_best))
        n = int(np.searchsorted(cumulative, p.top_p * cumulative[-1])) + 1  # the fewest that reach top_p
        cumulative = np.cumsum(np.exp(below_best[:n] / p.temperature))
        chosen = int(np.searchsorted(cumulative, self._uniform(position) * cumulative[-1], side="right"))
        return int(ids[min(chosen, len(cumulative) - 1)])

    def _uniform(self, position: int) -> float:
        key = np.array([self._seed, self._version], np.uint64)
        return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())


def _top_k(logits: F32, k: int) -> tuple[NDArray[np.intp], F32]:
    """Return the k best ids (all for 0) and their logits, best first, ties by id."""
    k = len(logits) if k == 0 else min(k, len(logits))
    ids = _candidates(logits, k)
    ids = ids[np.lexsort((ids, -logits[ids]))][:k]
    return ids, logits[ids]


def _candidates(logits: F32, k: int) -> NDArray[np.intp]:
    """Return ids among which the k best are.

    Of runs of ids, they are in the k with the greatest maxima: whatever lies elsewhere has those k before it. So
    looking for them takes one pass over the vocabulary, and none of it is sorted.
    """
    n_runs = len(logits) // _RUN
    if k >= n_runs:
        return np.arange(len(logits))
    whole = logits[: n_runs * _RUN].reshape(n_runs, _RUN)
    best_runs = np.argsort(-whole.max(axis=1), kind="stable")[:k]
    ids = (best_runs[:, None] * _RUN + np.arange(_RUN)).reshape(-1)
    ids = np.concatenate([ids, np.arange(n_runs * _RUN, len(logits))])
    kth = np.partition(logits[ids], len(ids) - k)[len(ids) - k]
    best: NDArray[np.intp] = ids[logits[ids] >= kth]
    return best
