"""The layers that architectures are made of. Immutable after loading; all state is in the memory passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.kernels import F32, Kernels, RopeTable
from engine.memory import Memory
from engine.models.config import ModelConfig, RopeConfig
from engine.models.weights import Weights

Activation = Callable[[F32, F32], F32]  # of gate and up


class Rope:
    """Rotation angles by position. `factors` (n_rot / 2) divide the frequencies (Llama 3's long contexts)."""

    def __init__(self, config: RopeConfig, factors: F32 | None = None) -> None:
        self.config = config
        exponents = np.arange(0, config.n_rot, 2, dtype=np.float64) / config.n_rot
        self._frequencies = config.scale / config.base**exponents
        if factors is not None:
            self._frequencies = self._frequencies / factors

    def table(self, start: int, n: int) -> RopeTable:
        """Return the angles of the positions start .. start + n - 1."""
        angles = np.arange(start, start + n)[:, None] * self._frequencies  # (n, n_rot / 2)
        return RopeTable(
            cos=np.cos(angles).astype(np.float32),
            sin=np.sin(angles).astype(np.float32),
            interleaved=self.config.interleaved,
        )


@dataclass(frozen=True)
class Norm:
    """Root-mean-square norm with a weight."""

    weight: F32
    eps: float

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, *, eps: float) -> Norm:
        """Take `name`.weight."""
        return cls(weights.pop(f"{name}.weight", size), eps)

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        return kernels.rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention, over all tokens or a window, with optional norms of queries and keys."""

    layer: int
    config: ModelConfig
    rope: Rope
    attn_qkv: F32  # (n_embd_q + n_embd_k + n_embd_v, n_embd): one product instead of three
    attn_output: F32  # (n_embd, n_head * head_dim_v)
    scale: float
    attn_q_norm: Norm | None = None
    attn_k_norm: Norm | None = None

    @classmethod
    def load(
        cls,
        weights: Weights,
        layer: int,
        config: ModelConfig,
        rope: Rope,
        *,
        scale: float,
        qk_norm: bool = False,
    ) -> Attention:
        """Take the attention tensors of block `layer`."""
        block = f"blk.{layer}"
        rows = {
            "attn_q": config.n_head * config.head_dim_k,
            "attn_k": config.n_head_kv * config.head_dim_k,
            "attn_v": config.n_head_kv * config.head_dim_v,
        }
        qkv = [weights.pop(f"{block}.{name}.weight", n, config.n_embd) for name, n in rows.items()]

        def norm(name: str) -> Norm | None:
            return Norm.load(weights, f"{block}.{name}", config.head_dim_k, eps=config.norm_eps) if qk_norm else None

        return cls(
            layer=layer,
            config=config,
            rope=rope,
            attn_qkv=np.concatenate(qkv),
            attn_output=weights.pop(f"{block}.attn_output.weight", config.n_embd, config.n_head * config.head_dim_v),
            scale=scale,
            attn_q_norm=norm("attn_q_norm"),
            attn_k_norm=norm("attn_k_norm"),
        )

    def __call__(self, kernels: Kernels, x: F32, memory: Memory, *, start: int, angles: RopeTable) -> F32:
        c = self.config
        qkv = kernels.matmul(x, self.attn_qkv)
        n_q, n_k = c.n_head * c.head_dim_k, c.n_head_kv * c.head_dim_k
        q = qkv[:, :n_q].reshape(len(x), c.n_head, c.head_dim_k)
        k = qkv[:, n_q : n_q + n_k].reshape(len(x), c.n_head_kv, c.head_dim_k)
        v = qkv[:, n_q + n_k :].reshape(len(x), c.n_head_kv, c.head_dim_v)
        if self.attn_q_norm is not None:
            q = self.attn_q_norm(kernels, q)
        if self.attn_k_norm is not None:
            k = self.attn_k_norm(kernels, k)
        q, k = kernels.rope(q, angles), kernels.rope(k, angles)
        rows_k, rows_v, first = memory.extend(self.layer, k, v)
        mixed = kernels.attention(
            q,
            rows_k,
            rows_v,
            q_start=start,
            k_start=first,
            scale=self.scale,
            n_swa=c.layers[self.layer].n_swa,
        )
        return kernels.matmul(mixed, self.attn_output)


@dataclass(frozen=True)
class GatedFFN:
    """Feed-forward network with a gate (arXiv 2002.05202)."""

    ffn_gate_up: F32  # (2 * n_ff, n_embd): one product instead of two
    ffn_down: F32  # (n_embd, n_ff)
    activation: Activation

    @classmethod
    def load(cls, weights: Weights, layer: int, *, n_embd: int, n_ff: int, activation: Activation) -> GatedFFN:
        """Take the feed-forward tensors of block `layer`."""
        gate, up = (weights.pop(f"blk.{layer}.{name}.weight", n_ff, n_embd) for name in ("ffn_gate", "ffn_up"))
        down = weights.pop(f"blk.{layer}.ffn_down.weight", n_embd, n_ff)
        return cls(np.concatenate([gate, up]), down, activation)

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        gate_up = kernels.matmul(x, self.ffn_gate_up)
        n_ff = gate_up.shape[1] // 2
        return kernels.matmul(self.activation(gate_up[:, :n_ff], gate_up[:, n_ff:]), self.ffn_down)


@dataclass(frozen=True)
class Block:
    """One transformer block: attention and feed-forward, each normed before, and where given also after."""

    attn_norm: Norm
    attention: Attention
    ffn_norm: Norm
    ffn: GatedFFN
    post_attention_norm: Norm | None = None
    post_ffw_norm: Norm | None = None

    def __call__(self, kernels: Kernels, x: F32, memory: Memory, *, start: int, angles: RopeTable) -> F32:
        mixed = self.attention(kernels, self.attn_norm(kernels, x), memory, start=start, angles=angles)
        if self.post_attention_norm is not None:
            mixed = self.post_attention_norm(kernels, mixed)
        x = x + mixed
        out = self.ffn(kernels, self.ffn_norm(kernels, x))
        if self.post_ffw_norm is not None:
            out = self.post_ffw_norm(kernels, out)
        return x + out
