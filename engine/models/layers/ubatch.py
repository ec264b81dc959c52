"""What the layers of a forward pass have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels, RopeTable
from engine.memory import LayerMemory, Memory
from engine.models.layers.rope import Rope


@dataclass(frozen=True)
class Ubatch:
    """The tokens of one forward pass, at the positions from `start` on."""

    kernels: Kernels
    memory: Memory  # with room for the tokens already made
    start: int
    token_ids: NDArray[np.int32]  # (n_tokens,)
    tables: dict[Rope, RopeTable] = field(default_factory=dict)  # those that were asked for
    _shared: dict[Callable[[Ubatch], F32], F32] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    def angles(self, rope: Rope) -> RopeTable:
        """Return the rotations of the tokens' positions, computed once for all layers that share a rope."""
        if rope not in self.tables:
            self.tables[rope] = rope.table(self.start, self.n_tokens)
        return self.tables[rope]

    def once(self, compute: Callable[[Ubatch], F32]) -> F32:
        """Return what `compute` makes of this ubatch, computed once for all layers that share it."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        return self._shared[compute]


class Layer(Protocol):
    """One of the steps that a model is a stack of: usually a `Block`."""

    @property
    def memory(self) -> Sequence[LayerMemory]:
        """What it keeps of the tokens seen."""

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        """Return what the next layer takes, reading and extending the memory.

        The first one takes the embeddings (n_tokens, n_embd), the last one gives as many values.
        """


class Mixer(Protocol):
    """The part of a block that mixes tokens: attention, a convolution, a state space, a delta rule."""

    @property
    def memory(self) -> Sequence[LayerMemory]:
        """What it keeps of the tokens seen."""

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        """Return its output for x (n_tokens, n_embd), of the same shape, reading and extending the memory."""
