"""How fast a model runs in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gguf.constants import TokenType

from engine.arrays import F32, TokenIds
from engine.models import Model
from engine.sampling import Sampler, SamplingParameters
from engine.tokenizer.vocabulary import Vocabulary

N_UBATCH = 512


@dataclass(frozen=True)
class Workload:
    """What is timed: reading n tokens, or generating n, behind `depth` others."""

    test: Literal["prefill", "decode"]
    n: int
    depth: int

    def __str__(self) -> str:
        return f"{self.test} of {self.n:,} tokens at depth {self.depth:,}"

    @property
    def n_ctx(self) -> int:
        """Tokens that the context must hold."""
        return self.depth + self.n


def random_ids(vocabulary: Vocabulary, n: int) -> TokenIds:
    """Return n ids of ordinary tokens, the same ones each time: speed does not depend on what is said."""
    ordinary = np.flatnonzero(vocabulary.types == TokenType.NORMAL)
    return np.random.default_rng(n).choice(ordinary, n).astype(np.int32)


class Speed:
    """Times workloads on the same token ids, of which there must be enough for the longest.

    The memory is kept from one to the next, and cut back to what that one needs of it; where it can't be, that is
    computed again before the clock starts.
    """

    def __init__(self, model: Model, token_ids: TokenIds) -> None:
        self._model = model
        self._token_ids = token_ids
        self._memory = model.new_memory()
        self._n_known = 0  # tokens of token_ids that lie in the memory, before any that were generated
        self._sampler = Sampler(SamplingParameters(temperature=0))

    def seconds(self, workload: Workload) -> float:
        """Return how long a workload takes.

        A prefill ends with the choice of the next token; each step of a decode evaluates a token and chooses the next.
        """
        return self._prefill(workload) if workload.test == "prefill" else self._decode(workload)

    def _prefill(self, workload: Workload) -> float:
        self._go_to(workload.depth)
        started = time.perf_counter()
        self._next_token(self._read_to(workload.depth + workload.n))
        return time.perf_counter() - started

    def _decode(self, workload: Workload) -> float:
        self._go_to(workload.depth)
        token_id = int(self._token_ids[0])
        started = time.perf_counter()
        for _ in range(workload.n):
            token_id = self._next_token(self._model.forward(np.array([token_id], np.int32), self._memory))
        return time.perf_counter() - started

    def _next_token(self, hidden: F32) -> int:
        return self._sampler.sample(self._model.logits(hidden[-1:])[0], self._memory.n_tokens)

    def _go_to(self, n: int) -> None:
        """Make the memory hold the first n tokens."""
        if n > self._n_known or self._memory.reuse_point(n) != n:
            self._memory = self._model.new_memory()
            self._n_known = 0
            self._read_to(n)
        else:
            self._memory.rewind(n)
            self._n_known = n

    def _read_to(self, n: int) -> F32:
        hidden = np.empty((0, self._model.config.n_embd), np.float32)
        for start in range(self._n_known, n, N_UBATCH):
            hidden = self._model.forward(self._token_ids[start : min(start + N_UBATCH, n)], self._memory)
        self._n_known = n
        return hidden
