"""AltUp: a wide stream of which each layer computes one part and predicts the others (arXiv 2301.13310)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.memory import LayerMemory
from engine.models.layers.linear import Linear
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Layer, Ubatch
from engine.models.weights import Weights


@dataclass(frozen=True)
class AltUp:
    """How one layer predicts the parts of the stream (n_tokens, n_altup, n_embd), of which it computes the first."""

    altup_router: Linear  # n_embd -> n_altup
    altup_router_norm: Norm
    altup_predict_coef: F32  # (n_altup * n_altup, n_altup)
    altup_correct_coef: F32  # (n_altup, n_altup)

    @classmethod
    def load(cls, weights: Weights, layer: int, *, n_altup: int, n_embd: int, eps: float) -> AltUp:
        """Take the tensors of block `layer`."""
        block = f"blk.{layer}"
        return cls(
            Linear.load(weights, {f"{block}.altup_router": n_altup}, n_embd),
            Norm.load(weights, f"{block}.altup_router_norm", n_embd, eps=eps),
            weights.array(f"{block}.altup_predict_coef.weight", n_altup * n_altup, n_altup),
            weights.array(f"{block}.altup_correct_coef.weight", n_altup, n_altup),
        )

    def predict(self, kernels: Kernels, x: F32) -> F32:
        """Return what the stream x is expected to be after this layer."""
        n_tokens, n_altup, _ = x.shape
        coefficients = self._modalities(kernels, x[:, 0]) @ self.altup_predict_coef.T
        out: F32 = x + np.matmul(coefficients.reshape(n_tokens, n_altup, n_altup), x)
        return out

    def correct(self, kernels: Kernels, predicted: F32, computed: F32) -> F32:
        """Return the stream that was predicted, corrected by its first part as `computed` (n_tokens, n_embd)."""
        coefficients = self._modalities(kernels, computed) @ self.altup_correct_coef.T + 1
        innovation = computed - predicted[:, 0]
        out: F32 = predicted + coefficients[:, :, None] * innovation[:, None]
        return out

    def _modalities(self, kernels: Kernels, x: F32) -> F32:
        routed = self.altup_router(kernels, self.altup_router_norm(kernels, x) / np.float32(x.shape[1]))
        return np.tanh(routed)


@dataclass(frozen=True)
class AltUpProjections:
    """The way from the embeddings into the wide stream, and back out of it."""

    altup_proj: tuple[Linear, ...]  # for each part but the first: n_embd -> n_embd
    altup_unembd_proj: tuple[Linear, ...]

    @classmethod
    def load(cls, weights: Weights, *, n_altup: int, n_embd: int) -> AltUpProjections:
        """Take the tensors that the layers share."""
        proj, unembd_proj = (
            Linear.load_experts(weights, {name: n_embd}, n_embd, n_altup - 1)
            for name in ("altup_proj", "altup_unembd_proj")
        )
        return cls(proj, unembd_proj)

    def widen(self, kernels: Kernels, x: F32) -> F32:
        """Return the stream (n_tokens, n_altup, n_embd) for embeddings (n_tokens, n_embd)."""
        return np.stack([x, *(_as_long_as(x, proj(kernels, x)) for proj in self.altup_proj)], axis=1)

    def narrow(self, kernels: Kernels, x: F32) -> F32:
        """Return the mean of the parts of a stream, all brought to the length of the first."""
        parts = [np.ascontiguousarray(part) for part in x.swapaxes(0, 1)]
        others = [
            _as_long_as(parts[0], proj(kernels, part))
            for proj, part in zip(self.altup_unembd_proj, parts[1:], strict=True)
        ]
        out: F32 = np.mean([parts[0], *others], axis=0)
        return out


@dataclass(frozen=True)
class AltUpEntry:
    """The first layer of the wide stream, with the way into it."""

    projections: AltUpProjections
    layer: Layer

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.layer.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        return self.layer(self.projections.widen(ubatch.kernels, x), ubatch)


@dataclass(frozen=True)
class AltUpExit:
    """The last layer of the wide stream, with the way out of it."""

    projections: AltUpProjections
    layer: Layer

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.layer.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        return self.projections.narrow(ubatch.kernels, self.layer(x, ubatch))


def _as_long_as(target: F32, x: F32) -> F32:
    out: F32 = x * (np.linalg.norm(target, axis=1, keepdims=True) / np.linalg.norm(x, axis=1, keepdims=True))
    return out
