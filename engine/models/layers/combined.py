"""Mixers made of other layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.arrays import F32
from engine.memory import LayerMemory
from engine.models.layers.ffn import FeedForward
from engine.models.layers.ubatch import Mixer, Ubatch


@dataclass(frozen=True)
class ParallelMixers:
    """Mixers side by side, on the same input; their outputs are added."""

    first: Mixer
    second: Mixer

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return (*self.first.memory, *self.second.memory)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        return ubatch.kernels.add(self.first(x, ubatch), self.second(x, ubatch))


@dataclass(frozen=True)
class TokenMixer:
    """A feed-forward network in the place of a mixer, for models whose blocks have one or the other."""

    ffn: FeedForward

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return ()

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        return self.ffn(ubatch.kernels, x)
