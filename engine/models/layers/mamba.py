"""State space layers: Mamba (arXiv 2312.00752) and Mamba-2 (arXiv 2405.21060)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.arrays import F32
from engine.kernels import Matrix
from engine.memory import LayerMemory, LayerState, RecurrentState
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Ubatch
from engine.models.ssm_config import SSMConfig
from engine.models.weights import Weights


@dataclass(frozen=True)
class Mamba2:
    """State space with one decay per head; groups of heads share B and C."""

    layer: int
    config: SSMConfig
    ssm_in: Matrix  # (d_inner + n_channel + n_head, n_embd): the gate, what is convolved (x, B, C), the time steps
    ssm_conv1d: F32  # (n_channel, d_conv)
    ssm_conv1d_bias: F32 | None  # (n_channel,)
    ssm_dt: F32  # (n_head,), added to the time steps
    ssm_a: F32  # (n_head,)
    ssm_d: F32  # (n_head,)
    ssm_norm: Norm | None  # of each group
    ssm_out: Matrix  # (n_embd, d_inner)

    @classmethod
    def load(cls, weights: Weights, layer: int, config: SSMConfig, *, n_embd: int, eps: float) -> Mamba2:
        """Take the state space's tensors of block `layer`."""
        block = f"blk.{layer}"
        n_head, n_channel = config.dt_rank, config.n_channel
        conv_bias, norm = f"{block}.ssm_conv1d.bias", f"{block}.ssm_norm.weight"
        group_size = config.d_inner // config.n_group
        return cls(
            layer=layer,
            config=config,
            ssm_in=weights.matrix({f"{block}.ssm_in.weight": config.d_inner + n_channel + n_head}, n_embd),
            ssm_conv1d=weights.array(f"{block}.ssm_conv1d.weight", n_channel, config.d_conv),
            ssm_conv1d_bias=weights.array(conv_bias, n_channel) if conv_bias in weights else None,
            ssm_dt=weights.array(f"{block}.ssm_dt.bias", n_head),
            ssm_a=weights.array(f"{block}.ssm_a", n_head, 1)[:, 0],
            ssm_d=weights.array(f"{block}.ssm_d", n_head, 1)[:, 0],
            ssm_norm=Norm(weights.array(norm, config.n_group, group_size), eps) if norm in weights else None,
            ssm_out=weights.matrix({f"{block}.ssm_out.weight": n_embd}, config.d_inner),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        c = self.config
        head_dim = c.d_inner // c.dt_rank
        return (RecurrentState(r=(c.n_channel, c.d_conv - 1), s=(c.dt_rank, head_dim, c.d_state)),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        config, kernels, n = self.config, ubatch.kernels, len(x)
        d_inner, n_key = config.d_inner, config.n_group * config.d_state
        state = ubatch.memory.state(self.layer)
        projected = kernels.matmul(x, self.ssm_in)
        z, xbc = projected[:, :d_inner], projected[:, d_inner : -config.dt_rank]
        xbc, r = kernels.short_conv(xbc, state.r, self.ssm_conv1d, bias=self.ssm_conv1d_bias, silu=True)
        y, s = kernels.ssd_scan(
            xbc[:, :d_inner].reshape(n, config.dt_rank, -1),
            xbc[:, d_inner:-n_key].reshape(n, config.n_group, -1),
            xbc[:, -n_key:].reshape(n, config.n_group, -1),
            dt=projected[:, -config.dt_rank :],
            s=state.s,
            a=self.ssm_a,
            d=self.ssm_d,
            dt_bias=self.ssm_dt,
        )
        ubatch.memory.set_state(self.layer, LayerState(r, s))
        y = kernels.silu_mul(z, y.reshape(n, -1))
        if self.ssm_norm is not None:
            y = self.ssm_norm(kernels, y.reshape(n, config.n_group, -1)).reshape(n, -1)
        return kernels.matmul(y, self.ssm_out)


@dataclass(frozen=True)
class Mamba:
    """State space with a decay for each value of its state."""

    layer: int
    config: SSMConfig
    ssm_in: Matrix  # (2 * d_inner, n_embd): what is convolved, and the gate
    ssm_conv1d: F32  # (d_inner, d_conv)
    ssm_conv1d_bias: F32  # (d_inner,)
    ssm_x: Matrix  # (dt_rank + 2 * d_state, d_inner): the time steps, B and C
    ssm_dt: Matrix  # (d_inner, dt_rank)
    ssm_dt_bias: F32  # (d_inner,)
    ssm_a: F32  # (d_inner, d_state)
    ssm_d: F32  # (d_inner,)
    ssm_norms: tuple[Norm, Norm, Norm] | None  # of the time steps, B and C
    ssm_out: Matrix  # (n_embd, d_inner)

    @classmethod
    def load(
        cls, weights: Weights, layer: int, config: SSMConfig, *, n_embd: int, norms: tuple[Norm, Norm, Norm] | None
    ) -> Mamba:
        """Take the state space's tensors of block `layer` but for those of `norms`."""
        block, d_inner = f"blk.{layer}", config.d_inner
        return cls(
            layer=layer,
            config=config,
            ssm_in=weights.matrix({f"{block}.ssm_in.weight": 2 * d_inner}, n_embd),
            ssm_conv1d=weights.array(f"{block}.ssm_conv1d.weight", d_inner, config.d_conv),
            ssm_conv1d_bias=weights.array(f"{block}.ssm_conv1d.bias", d_inner),
            ssm_x=weights.matrix({f"{block}.ssm_x.weight": config.dt_rank + 2 * config.d_state}, d_inner),
            ssm_dt=weights.matrix({f"{block}.ssm_dt.weight": d_inner}, config.dt_rank),
            ssm_dt_bias=weights.array(f"{block}.ssm_dt.bias", d_inner),
            ssm_a=weights.array(f"{block}.ssm_a", d_inner, config.d_state),
            ssm_d=weights.array(f"{block}.ssm_d", d_inner),
            ssm_norms=norms,
            ssm_out=weights.matrix({f"{block}.ssm_out.weight": n_embd}, d_inner),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        c = self.config
        return (RecurrentState(r=(c.d_inner, c.d_conv - 1), s=(c.d_inner, c.d_state)),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        config, kernels = self.config, ubatch.kernels
        state = ubatch.memory.state(self.layer)
        projected = kernels.matmul(x, self.ssm_in)
        values, z = projected[:, : config.d_inner], projected[:, config.d_inner :]
        values, r = kernels.short_conv(values, state.r, self.ssm_conv1d, bias=self.ssm_conv1d_bias, silu=True)
        projected = kernels.matmul(values, self.ssm_x)
        dt = projected[:, : config.dt_rank]
        b, c = projected[:, config.dt_rank : -config.d_state], projected[:, -config.d_state :]
        if self.ssm_norms is not None:
            dt, b, c = (norm(kernels, part) for norm, part in zip(self.ssm_norms, (dt, b, c), strict=True))
        y, s = kernels.selective_scan(
            values,
            b,
            c,
            dt=kernels.matmul(dt, self.ssm_dt),
            s=state.s,
            a=self.ssm_a,
            d=self.ssm_d,
            dt_bias=self.ssm_dt_bias,
        )
        ubatch.memory.set_state(self.layer, LayerState(r, s))
        return kernels.matmul(kernels.silu_mul(z, y), self.ssm_out)
