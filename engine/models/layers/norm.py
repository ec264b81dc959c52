"""Norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.models.weights import Weights, constant


@dataclass(frozen=True)
class Norm:
    """Root-mean-square norm with a weight (arXiv 1910.07467)."""

    weight: F32
    eps: float

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, *, eps: float) -> Self:
        """Take `name`.weight."""
        return cls(weights.array(f"{name}.weight", size), eps)

    @classmethod
    def plain(cls, size: int, *, eps: float) -> Self:
        """Return a norm whose weights are all 1."""
        return cls(constant(np.ones(size, np.float32)), eps)

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        return kernels.rms_norm(x, self.weight, self.eps)


class LayerNorm(Norm):
    """Norm by mean and standard deviation, with a weight (arXiv 1607.06450)."""

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        return kernels.layer_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class BiasedLayerNorm(LayerNorm):
    """Norm by mean and standard deviation, with a weight and a bias."""

    bias: F32

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, *, eps: float) -> Self:
        """Take `name`.weight and `name`.bias."""
        return cls(weights.array(f"{name}.weight", size), eps, weights.array(f"{name}.bias", size))

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        return kernels.add(super().__call__(kernels, x), self.bias)
