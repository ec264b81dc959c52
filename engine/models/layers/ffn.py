"""Feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.models.layers.linear import Linear
from engine.models.weights import Weights

Activation = Callable[[F32, F32], F32]  # of gate and up


class FeedForward(Protocol):
    """The part of a block that sees each token alone."""

    def __call__(self, kernels: Kernels, x: F32) -> F32: ...


@dataclass(frozen=True)
class GatedFFN:
    """Feed-forward network with a gate (arXiv 2002.05202)."""

    ffn_gate_up: Linear  # n_embd -> 2 * n_ff: one product instead of two
    ffn_down: Linear  # n_ff -> n_embd
    activation: Activation

    @classmethod
    def load(
        cls, weights: Weights, layer: int, *, n_embd: int, n_ff: int, activation: Activation, suffix: str = ""
    ) -> GatedFFN:
        """Take the feed-forward tensors of block `layer`; their names end in `suffix` for a shared expert's."""
        gate, up, down = (f"blk.{layer}.ffn_{name}{suffix}" for name in ("gate", "up", "down"))
        # some files have both in one tensor under the name of the second
        rows = {gate: n_ff, up: n_ff} if f"{gate}.weight" in weights else {up: 2 * n_ff}
        return cls(Linear.load(weights, rows, n_embd), Linear.load(weights, {down: n_embd}, n_ff), activation)

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        gate_up = self.ffn_gate_up(kernels, x)
        n_ff = gate_up.shape[1] // 2
        return self.ffn_down(kernels, self.activation(gate_up[:, :n_ff], gate_up[:, n_ff:]))


@dataclass(frozen=True)
class SquaredReluFFN:
    """Feed-forward network with relu(x)² between two layers (arXiv 2109.08668)."""

    ffn_up: Linear  # n_embd -> n_ff
    ffn_down: Linear  # n_ff -> n_embd

    @classmethod
    def load(cls, weights: Weights, layer: int, *, n_embd: int, n_ff: int) -> SquaredReluFFN:
        """Take the feed-forward tensors of block `layer`."""
        up, down = f"blk.{layer}.ffn_up", f"blk.{layer}.ffn_down"
        return cls(Linear.load(weights, {up: n_ff}, n_embd), Linear.load(weights, {down: n_embd}, n_ff))

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        return self.ffn_down(kernels, np.square(np.maximum(self.ffn_up(kernels, x), 0)))
