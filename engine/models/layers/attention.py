"""Attention layers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.arrays import F32
from engine.memory import AttentionRows, LayerMemory
from engine.models.config import AttentionConfig
from engine.models.layers.linear import Linear
from engine.models.layers.norm import Norm
from engine.models.layers.rope import Rope
from engine.models.layers.ubatch import Ubatch
from engine.models.weights import Weights


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention, over all tokens or a window."""

    layer: int
    config: AttentionConfig
    rope: Rope | None
    attn_qkv: Linear  # one product instead of three; only the queries where rows are shared
    attn_output: Linear  # n_head * head_dim_v -> n_embd
    attn_q_norm: Norm | None = None
    attn_k_norm: Norm | None = None
    attn_v_norm: Norm | None = None
    attn_sinks: F32 | None = None  # (n_head,), see Kernels.attention

    @classmethod
    def load(
        cls,
        weights: Weights,
        layer: int,
        config: AttentionConfig,
        rope: Rope | None,
        *,
        n_embd: int,
        qk_norm_eps: float | None = None,
    ) -> Attention:
        """Take the attention tensors of block `layer`, norms of queries and keys if they have an epsilon."""
        c, block = config, f"blk.{layer}"
        rows = {f"{block}.attn_q": c.n_head * c.head_dim_k * (2 if c.gated else 1)}
        if c.rows_of is None:
            rows[f"{block}.attn_k"] = c.n_head_kv * c.head_dim_k
        if c.rows_of is None and not c.k_as_v:
            rows[f"{block}.attn_v"] = c.n_head_kv * c.head_dim_v
        if f"{block}.attn_qkv.weight" in weights:
            rows = {f"{block}.attn_qkv": sum(rows.values())}

        def norm(name: str, n_head: int) -> Norm | None:
            if qk_norm_eps is None:
                return None
            size = c.head_dim_k * (n_head if c.qk_norm_over_heads else 1)
            return Norm.load(weights, f"{block}.{name}", size, eps=qk_norm_eps)

        sinks = f"{block}.attn_sinks.weight"
        return cls(
            layer=layer,
            config=config,
            rope=rope,
            attn_qkv=Linear.load(weights, rows, n_embd),
            attn_output=Linear.load(weights, {f"{block}.attn_output": n_embd}, c.n_head * c.head_dim_v),
            attn_q_norm=norm("attn_q_norm", c.n_head),
            attn_k_norm=norm("attn_k_norm", c.n_head_kv) if c.rows_of is None else None,
            attn_v_norm=Norm.plain(c.head_dim_v, eps=qk_norm_eps) if c.v_norm and qk_norm_eps else None,
            attn_sinks=weights.array(sinks, c.n_head) if sinks in weights else None,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        c = self.config
        return () if c.rows_of is not None else (AttentionRows(c.n_head_kv, c.head_dim_k, c.head_dim_v, n_swa=c.n_swa),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        c, kernels = self.config, ubatch.kernels
        qkv = self.attn_qkv(kernels, x)
        n_q = c.n_head * c.head_dim_k * (2 if c.gated else 1)
        q = qkv[:, :n_q].reshape(len(x), c.n_head, -1)
        q, gate = q[..., : c.head_dim_k], q[..., c.head_dim_k :]
        if c.rows_of is not None:
            q = self._position(q, self.attn_q_norm, ubatch)
            rows_k, rows_v, span = ubatch.memory.rows(c.rows_of)
        else:
            k = qkv[:, n_q : n_q + c.n_head_kv * c.head_dim_k].reshape(len(x), c.n_head_kv, c.head_dim_k)
            v = qkv[:, -c.n_head_kv * c.head_dim_v :].reshape(len(x), c.n_head_kv, c.head_dim_v)
            if self.attn_q_norm is None and self.attn_k_norm is None and not c.gated:
                heads = qkv[:, : n_q + c.n_head_kv * c.head_dim_k].reshape(len(x), -1, c.head_dim_k)
                heads = self._position(heads, None, ubatch)  # at once, as they lie side by side
                q, k = heads[:, : c.n_head], heads[:, c.n_head :]
            else:
                q = self._position(q, self.attn_q_norm, ubatch)
                k = self._position(k, self.attn_k_norm, ubatch)
            if self.attn_v_norm is not None:
                v = self.attn_v_norm(kernels, v)
            rows_k, rows_v, span = ubatch.memory.extend(self.layer, k, v, kernels.store_rows)
        mixed = kernels.attention(
            q,
            rows_k,
            rows_v,
            span,
            scale=c.scale,
            n_swa=c.n_swa,
            softcap=c.softcap,
            sinks=self.attn_sinks,
        )
        if c.gated:
            by_head = kernels.sigmoid_mul(gate.reshape(-1, c.head_dim_v), mixed.reshape(-1, c.head_dim_v))
            mixed = by_head.reshape(mixed.shape)
        return self.attn_output(kernels, mixed)

    def _position(self, x: F32, norm: Norm | None, ubatch: Ubatch) -> F32:
        """Return queries or keys (n_tokens, n_head, head_dim_k), normed and rotated."""
        if norm is not None:
            x = norm(ubatch.kernels, x.reshape(len(x), -1, len(norm.weight))).reshape(x.shape)
        if self.rope is not None:
            x = ubatch.kernels.rope(x, ubatch.angles(self.rope))
        return x
