"""RWKV-7 layers (arXiv 2503.14456).

The stream between them is (n_tokens, 2, n_embd): the activations, and the values of the first layer, which all the
later ones mix into theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels, Matrix
from engine.memory import LayerMemory, LayerState, RecurrentState
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Layer, Ubatch

_LOG_FASTEST_DECAY = np.float32(-np.exp(-0.5))


@dataclass(frozen=True)
class LowRank:
    """A product with a matrix of low rank, with an activation between its halves and a bias behind."""

    down: Matrix  # (rank, n_embd)
    up: Matrix  # (n_embd, rank)
    bias: F32 | None = None  # (n_embd,)
    activation: Callable[[F32], F32] | None = None

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        x = kernels.matmul(x, self.down)
        x = kernels.matmul(x if self.activation is None else self.activation(x), self.up)
        return x if self.bias is None else x + self.bias


@dataclass(frozen=True)
class TimeMix:
    """The part of a layer that mixes tokens: a delta rule with a decay for each value of a key."""

    n_head: int
    lerp: F32  # (6, n_embd): how much of the token before goes into r, w, k, v, a and g
    receptance: Matrix  # (n_embd, n_embd)
    key: Matrix  # (n_embd, n_embd)
    value: Matrix  # (n_embd, n_embd)
    decay: LowRank
    rate: LowRank  # of learning in context
    gate: LowRank
    value_residual: LowRank | None  # None in the first layer
    k_k: F32  # (n_embd,)
    k_a: F32  # (n_embd,)
    r_k: F32  # (n_head, head_dim)
    norm: Norm  # of each head's output, without a weight
    norm_weight: F32  # (n_embd,)
    norm_bias: F32  # (n_embd,)
    output: Matrix  # (n_embd, n_embd)

    def __call__(self, kernels: Kernels, x: F32, before: F32, first_v: F32, s: F32) -> tuple[F32, F32, F32]:
        """Return its output, the values of the first layer, and the state after x.

        x, the tokens `before` each of x and `first_v` are (n_tokens, n_embd).
        """
        x_r, x_w, x_k, x_v, x_a, x_g = x + (before - x) * self.lerp[:, None]
        r, k, v = kernels.matmul(x_r, self.receptance), kernels.matmul(x_k, self.key), kernels.matmul(x_v, self.value)
        if self.value_residual is None:
            first_v = v
        else:
            v = v + (first_v - v) * sigmoid(self.value_residual(kernels, x_v))
        rate = self._heads(sigmoid(self.rate(kernels, x_a)))
        removed = self._heads(k * self.k_k)
        removed = removed / np.maximum(np.linalg.norm(removed, axis=-1, keepdims=True), np.float32(1e-12))
        k = k + (rate.reshape(x.shape) - 1) * (k * self.k_a)
        r, k, v = self._heads(r), self._heads(k), self._heads(v)
        log_w = self._heads(_LOG_FASTEST_DECAY * sigmoid(self.decay(kernels, x_w)))
        out, s = kernels.wkv7(r, k, v, log_w=log_w, a=-removed, b=removed * rate, s=s)
        out = self.norm(kernels, out).reshape(x.shape) * self.norm_weight + self.norm_bias
        out += (v * (r * k * self.r_k).sum(axis=-1, keepdims=True)).reshape(x.shape)
        return kernels.matmul(out * self.gate(kernels, x_g), self.output), first_v, s

    def _heads(self, x: F32) -> F32:
        return x.reshape(len(x), self.n_head, -1)


@dataclass(frozen=True)
class ChannelMix:
    """The feed-forward network of a layer; it sees the token before as well."""

    lerp: F32  # (n_embd,)
    key: Matrix  # (n_ff, n_embd)
    value: Matrix  # (n_embd, n_ff)

    def __call__(self, kernels: Kernels, x: F32, before: F32) -> F32:
        hidden = kernels.matmul(x + (before - x) * self.lerp, self.key)
        return kernels.matmul(np.square(np.maximum(hidden, 0)), self.value)


@dataclass(frozen=True)
class RWKV7Block:
    """One layer on the stream."""

    layer: int
    attn_norm: Norm
    time_mix: TimeMix
    attn_norm_2: Norm
    channel_mix: ChannelMix

    @property
    def memory(self) -> Sequence[LayerMemory]:
        n_head, head_dim = self.time_mix.r_k.shape
        return (RecurrentState(r=(2, n_head * head_dim), s=(n_head, head_dim, head_dim)),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels = ubatch.kernels
        state = ubatch.memory.state(self.layer)
        activations, first_v = np.ascontiguousarray(x[:, 0]), x[:, 1]
        normed = self.attn_norm(kernels, activations)
        mixed, first_v, s = self.time_mix(kernels, normed, _shifted(normed, state.r[0]), first_v, state.s)
        activations = activations + mixed
        normed_2 = self.attn_norm_2(kernels, activations)
        activations = activations + self.channel_mix(kernels, normed_2, _shifted(normed_2, state.r[1]))
        ubatch.memory.set_state(self.layer, LayerState(np.stack([normed[-1], normed_2[-1]]), s))
        return np.stack([activations, first_v], axis=1)


@dataclass(frozen=True)
class StreamEntry:
    """A norm of the embeddings, and the first layer behind it."""

    norm: Norm
    first: Layer

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.first.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        x = self.norm(ubatch.kernels, x)
        return self.first(np.stack([x, np.zeros_like(x)], axis=1), ubatch)


@dataclass(frozen=True)
class StreamExit:
    """The last layer, and the stream without the first values."""

    last: Layer

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.last.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        return np.ascontiguousarray(self.last(x, ubatch)[:, 0])


def sigmoid(x: F32) -> F32:
    """Return 1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp overflows to infinity where the quotient is 0 anyway
        out: F32 = np.reciprocal(1 + np.exp(-x))
    return out


def _shifted(x: F32, before: F32) -> F32:
    """Return the token before each of x (n_tokens, n_embd); `before` (n_embd,) is the one before the first."""
    return np.concatenate([before[None], x[:-1]])
