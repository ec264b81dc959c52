"""Recurrent layers, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from engine.arrays import F32
from engine.kernels.compiled import chunks, delta_net, selective_scan, short_conv, ssd, wkv7
from engine.kernels.compiled.array_check import by_token
from engine.kernels.compiled.calls import Operation, link_operations
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import Library
from engine.kernels.compiled.operation import Parameters
from engine.kernels.compiled.scratch import Scratch
from engine.kernels.compiled.spinning_team import SpinningTeam
from engine.kernels.reference_recurrent import RecurrentReference


class RecurrentKernels(RecurrentReference):
    """The part of the compiled kernels that recurrent layers need; sizes that don't fill registers are NumPy's.

    Operations are compiled when they are first needed: most models have no recurrent layers.
    """

    isa: InstructionSet
    _library: Library
    _spinning: SpinningTeam
    _scratch: Scratch
    _partial: Scratch

    def short_conv(
        self, x: F32, r: F32, weight: F32, *, bias: F32 | None = None, silu: bool = False
    ) -> tuple[F32, F32]:
        n_tokens, n_channel = x.shape
        width = weight.shape[1]
        if width not in short_conv.WIDTHS or n_channel % short_conv.CHANNELS:
            return super().short_conv(x, r, weight, bias=bias, silu=silu)
        x = by_token(x)
        out, after = np.empty((n_tokens, n_channel), np.float32), np.empty(r.shape, np.float32)
        self._spinning.do(
            self._short_conv[short_conv.name_of(width, silu=silu)],
            x=x, r=r, weight=weight, bias=weight if bias is None else bias, out=out, after=after,
            n_tokens=n_tokens, n_channel=n_channel, x_bytes=x.strides[0], has_bias=bias is not None,
        )  # fmt: skip
        return out, after

    def gated_delta_net(
        self,
        q: F32,
        k: F32,
        v: F32,
        *,
        alpha: F32,
        beta: F32,
        s: F32,
        a: F32,
        dt_bias: F32,
        eps: float,
    ) -> tuple[F32, F32]:
        n_tokens, n_head_k, head_dim_k = q.shape
        _, n_head_v, head_dim_v = v.shape
        if not self._fills_registers(head_dim_v, head_dim_k, n_tokens):
            return super().gated_delta_net(q, k, v, alpha=alpha, beta=beta, s=s, a=a, dt_bias=dt_bias, eps=eps)
        q, k, v, alpha, beta = (by_token(array) for array in (q, k, v, alpha, beta))
        out, after = np.empty(v.shape, np.float32), np.empty(s.shape, np.float32)
        n_scratch = delta_net.scratch_floats(head_dim_k, head_dim_v)
        scratch = self._scratch.of(4 * n_scratch * self.n_threads)
        self._spinning.do(
            self._delta_net["delta_net_step" if n_tokens == 1 else "delta_net"],
            q=q, k=k, v=v, alpha=alpha, beta=beta, s=s, a=a, dt_bias=dt_bias, out=out, after=after,
            n_tokens=n_tokens, n_head_k=n_head_k, n_head_v=n_head_v, head_dim_k=head_dim_k, head_dim_v=head_dim_v,
            q_bytes=q.strides[0], k_bytes=k.strides[0], v_bytes=v.strides[0],
            alpha_bytes=alpha.strides[0], beta_bytes=beta.strides[0], eps=eps,
            scratch=scratch, scratch_bytes=4 * n_scratch,
        )  # fmt: skip
        return out, after

    def ssd_scan(self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32) -> tuple[F32, F32]:
        n_tokens, n_head, head_dim = x.shape
        _, n_group, d_state = b.shape
        if not self._fills_registers(head_dim, d_state, n_tokens):
            return super().ssd_scan(x, b, c, dt=dt, s=s, a=a, d=d, dt_bias=dt_bias)
        x, b, c, dt = (by_token(array) for array in (x, b, c, dt))
        out, after = np.empty(x.shape, np.float32), np.empty(s.shape, np.float32)
        n_scratch = ssd.scratch_floats(head_dim, d_state)
        scratch = self._scratch.of(4 * n_scratch * self.n_threads)
        pairs = self._partial.of(4 * -(-n_tokens // chunks.CHUNK) * n_group * chunks.CHUNK**2)
        self._spinning.do(
            self._ssd["ssd_step" if n_tokens == 1 else "ssd"],
            x=x, b=b, c=c, dt=dt, s=s, a=a, d=d, dt_bias=dt_bias, out=out, after=after,
            n_tokens=n_tokens, n_head=n_head, n_group=n_group, head_dim=head_dim, d_state=d_state,
            x_bytes=x.strides[0], b_bytes=b.strides[0], c_bytes=c.strides[0], dt_bytes=dt.strides[0],
            pairs=pairs, scratch=scratch, scratch_bytes=4 * n_scratch,
        )  # fmt: skip
        return out, after

    def selective_scan(
        self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32
    ) -> tuple[F32, F32]:
        n_tokens, n_channel = x.shape
        d_state = b.shape[1]
        if n_channel % chunks.ROWS or d_state % chunks.ROWS:
            return super().selective_scan(x, b, c, dt=dt, s=s, a=a, d=d, dt_bias=dt_bias)
        x, b, c, dt = (by_token(array) for array in (x, b, c, dt))
        out, after = np.empty(x.shape, np.float32), np.empty(s.shape, np.float32)
        self._spinning.do(
            self._selective_scan, x=x, b=b, c=c, dt=dt, s=s, a=a, d=d, dt_bias=dt_bias, out=out, after=after,
            n_tokens=n_tokens, n_channel=n_channel, d_state=d_state,
            x_bytes=x.strides[0], b_bytes=b.strides[0], c_bytes=c.strides[0], dt_bytes=dt.strides[0],
        )  # fmt: skip
        return out, after

    def wkv7(self, r: F32, k: F32, v: F32, *, log_w: F32, a: F32, b: F32, s: F32) -> tuple[F32, F32]:
        n_tokens, n_head, head_dim = r.shape
        if head_dim % chunks.ROWS:
            return super().wkv7(r, k, v, log_w=log_w, a=a, b=b, s=s)
        r, k, v, log_w, a, b = (np.ascontiguousarray(array) for array in (r, k, v, log_w, a, b))
        out, after = np.empty(r.shape, np.float32), np.empty(s.shape, np.float32)
        scratch = self._scratch.of(4 * head_dim * self.n_threads)
        self._spinning.do(
            self._wkv7, r=r, k=k, v=v, log_w=log_w, a=a, b=b, s=s, out=out, after=after,
            n_tokens=n_tokens, n_head=n_head, head_dim=head_dim, scratch=scratch,
        )  # fmt: skip
        return out, after

    def _fills_registers(self, n_rows: int, n: int, n_tokens: int) -> bool:
        """Whether the states (n_rows, n) of heads are of sizes that the operations can do.

        Products are as wide as an instruction set has it, but a single token needs none.
        """
        width = chunks.ROWS if n_tokens == 1 else chunks.product_width(self.isa)
        return n_rows % width == 0 and n % chunks.ROWS == 0

    @cached_property
    def _short_conv(self) -> Mapping[str, Operation]:
        signatures = {
            short_conv.name_of(width, silu=silu): short_conv.parameters(width)
            for width in short_conv.WIDTHS
            for silu in (False, True)
        }
        return self._link("short_conv", short_conv.write_short_conv, signatures)

    @cached_property
    def _delta_net(self) -> Mapping[str, Operation]:
        names = ["delta_net", "delta_net_step"]
        return self._link("delta_net", delta_net.write_delta_net, dict.fromkeys(names, delta_net.PARAMETERS))

    @cached_property
    def _ssd(self) -> Mapping[str, Operation]:
        return self._link("ssd", ssd.write_ssd, dict.fromkeys(["ssd", "ssd_step"], ssd.PARAMETERS))

    @cached_property
    def _selective_scan(self) -> Operation:
        name = "selective_scan"
        return self._link(name, selective_scan.write_selective_scan, {name: selective_scan.PARAMETERS})[name]

    @cached_property
    def _wkv7(self) -> Operation:
        return self._link("wkv7", wkv7.write_wkv7, {"wkv7": wkv7.PARAMETERS})["wkv7"]

    def _link(
        self, name: str, write: Callable[..., None], signatures: Mapping[str, Parameters]
    ) -> dict[str, Operation]:
        """Return a module's operations by name."""
        return link_operations(self._library, name, write, signatures)
