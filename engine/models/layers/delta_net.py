"""Gated delta nets (arXiv 2412.06464)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Matrix
from engine.memory import LayerMemory, LayerState, RecurrentState
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Ubatch
from engine.models.ssm_config import SSMConfig
from engine.models.weights import Weights


@dataclass(frozen=True)
class Projection:
    """The tensors that a delta net's inputs come from: queries, keys and values, output gates, beta, alpha.

    `rows` gives the number of rows of each; `order` says which of their outputs stands where in that sequence, None
    if they come in it. Groups of value heads share a key head: neighboring heads do where `grouped`, else those that
    are as many heads apart as there are key heads.
    """

    rows: Mapping[str, int]
    order: NDArray[np.intp] | None = None
    grouped: bool = False


@dataclass(frozen=True)
class DeltaNet:
    """Linear attention whose state forgets, and corrects what it holds under a key."""

    layer: int
    config: SSMConfig
    eps: float
    projection: Projection
    ssm_in: Matrix  # (n_channel + d_inner + 2 * n_head_v, n_embd): one product for all of the projection
    ssm_conv1d: F32  # (n_channel, d_conv)
    ssm_dt: F32  # (n_head_v,), added to alpha
    ssm_a: F32  # (n_head_v,)
    ssm_norm: Norm  # of each head's output
    ssm_out: Matrix  # (n_embd, d_inner)

    @classmethod
    def load(
        cls, weights: Weights, layer: int, config: SSMConfig, projection: Projection, *, n_embd: int, eps: float
    ) -> DeltaNet:
        """Take the delta net's tensors of block `layer`."""
        block = f"blk.{layer}"
        return cls(
            layer=layer,
            config=config,
            eps=eps,
            projection=projection,
            ssm_in=weights.matrix({f"{block}.{name}.weight": n for name, n in projection.rows.items()}, n_embd),
            ssm_conv1d=weights.array(f"{block}.ssm_conv1d.weight", config.n_channel, config.d_conv),
            ssm_dt=weights.array(f"{block}.ssm_dt.bias", config.dt_rank),
            ssm_a=weights.array(f"{block}.ssm_a", config.dt_rank),
            ssm_norm=Norm.load(weights, f"{block}.ssm_norm", config.d_inner // config.dt_rank, eps=eps),
            ssm_out=weights.matrix({f"{block}.ssm_out.weight": n_embd}, config.d_inner),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        c = self.config
        head_dim_v = c.d_inner // c.dt_rank
        return (RecurrentState(r=(c.n_channel, c.d_conv - 1), s=(c.dt_rank, head_dim_v, c.d_state)),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        c, kernels, n = self.config, ubatch.kernels, len(x)
        state = ubatch.memory.state(self.layer)
        projected = kernels.matmul(x, self.ssm_in)
        if self.projection.order is not None:
            projected = projected[:, self.projection.order]
        qkv, z = projected[:, : c.n_channel], projected[:, c.n_channel : -2 * c.dt_rank]
        beta, alpha = projected[:, -2 * c.dt_rank : -c.dt_rank], projected[:, -c.dt_rank :]
        qkv, r = kernels.short_conv(qkv, state.r, self.ssm_conv1d, silu=True)
        n_key = c.n_group * c.d_state
        q, k = qkv[:, :n_key].reshape(n, c.n_group, -1), qkv[:, n_key : 2 * n_key].reshape(n, c.n_group, -1)
        if self.projection.grouped:
            q, k = (np.repeat(heads, c.dt_rank // c.n_group, axis=1) for heads in (q, k))
        out, s = kernels.gated_delta_net(
            q,
            k,
            qkv[:, 2 * n_key :].reshape(n, c.dt_rank, -1),
            alpha=alpha,
            beta=beta,
            s=state.s,
            a=self.ssm_a,
            dt_bias=self.ssm_dt,
            eps=self.eps,
        )
        ubatch.memory.set_state(self.layer, LayerState(r, s))
        out = kernels.silu_mul(z, self.ssm_norm(kernels, out).reshape(n, -1))
        return kernels.matmul(out, self.ssm_out)
