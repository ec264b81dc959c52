"""The gated delta rule (arXiv 2412.06464); a task takes one value head through all tokens.

In a chunk, u_i = β_i (v_i - s k_i) are the updates of the state, each seen by those after it: the solution of a
triangular system (arXiv 2406.06484), which is solved from its first row on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir as llvm_ir

from engine.kernels.compiled import functions
from engine.kernels.compiled.chunks import (
    CHUNK,
    ROWS,
    Chunks,
    Decays,
    Rows,
    copy_column,
    copy_transposed,
    write_multiply_rows,
    write_update_rows,
)
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use

PARAMETERS = {
    "q": Array(Use.READ, "n_tokens n_head_k head_dim_k", step="q_bytes"),
    "k": Array(Use.READ, "n_tokens n_head_k head_dim_k", step="k_bytes"),
    "v": Array(Use.READ, "n_tokens n_head_v head_dim_v", step="v_bytes"),
    "alpha": Array(Use.READ, "n_tokens n_head_v", step="alpha_bytes"),
    "beta": Array(Use.READ, "n_tokens n_head_v", step="beta_bytes"),
    "s": Array(Use.STATE, "n_head_v head_dim_v head_dim_k"),
    "a": Array(Use.READ, "n_head_v"),
    "dt_bias": Array(Use.READ, "n_head_v"),
    "out": Array(Use.WRITTEN, "n_tokens n_head_v head_dim_v"),
    "after": Array(Use.NEXT_STATE, "n_head_v head_dim_v head_dim_k"),
    "n_tokens": i64,
    "n_head_k": i64,
    "n_head_v": i64,
    "head_dim_k": i64,
    "head_dim_v": i64,
    "q_bytes": i64,
    "k_bytes": i64,
    "v_bytes": i64,
    "alpha_bytes": i64,
    "beta_bytes": i64,
    "eps": f32,
    "scratch": Array(Use.LASTING, dtype=np.uint8),  # scratch_floats for each thread
    "scratch_bytes": i64,
}
_TYPE = vec(f32, ROWS)


def scratch_floats(head_dim_k: int, head_dim_v: int) -> int:
    """Return the size of a thread's scratch memory: queries, keys, keys transposed, updates, state, pairs of tokens."""
    return CHUNK * (3 * head_dim_k + head_dim_v + 2 * CHUNK) + head_dim_k * head_dim_v


def write_delta_net(module: Module, isa: InstructionSet) -> None:
    """Write `delta_net` and, for a single token, `delta_net_step`."""
    operations = Operations(module, isa)
    operations.add("delta_net", PARAMETERS, [(_n_tasks, _Prefill(isa, Chunks.write(module, isa)).write)])
    step = _Step(write_multiply_rows(module), write_update_rows(module))
    operations.add("delta_net_step", PARAMETERS, [(_n_tasks, step.write)])


def _n_tasks(f: Function) -> Value:
    return f["n_head_v"]


def _key_head(f: Function) -> Value:
    """Write where the head's keys and queries begin in a token, in bytes."""
    return f["task"] % f["n_head_k"] * f["head_dim_k"] * 4


def _normalize(f: Function, source: Value, target: Value, scale: Value | None = None) -> None:
    """Write a key or (scaled) query divided by its length."""
    squares = f.variable(f.constant(_TYPE, 0.0))
    with f.loop(f["head_dim_k"], step=ROWS) as i:
        value = f.load(_TYPE, source + i * 4)
        squares.set(f.fma(value, value, squares.get()))
    length = f.elementwise("sqrt", functions.sum_of_lanes(f, squares.get()) + f["eps"])
    factor = ((1.0 if scale is None else scale) / length).splat(ROWS)
    with f.loop(f["head_dim_k"], step=ROWS) as i:
        f.store(f.load(_TYPE, source + i * 4) * factor, target + i * 4)


def _query_scale(f: Function) -> Value:
    return 1.0 / f.elementwise("sqrt", f["head_dim_k"].to(f32))


def _log_decay(f: Function, alpha: Value) -> Value:
    """Write the logarithm of the decay for a vector of alphas."""
    head = f["task"] * 4
    a, dt_bias = (f.load(f32, f[name] + head).splat(alpha.type.count) for name in ("a", "dt_bias"))
    return a * functions.softplus(f, alpha + dt_bias)


@dataclass(frozen=True)
class _Step:
    """Writes the update by a single token."""

    multiply_rows: llvm_ir.Function
    update_rows: llvm_ir.Function

    def write(self, f: Function) -> None:
        head, n, n_rows = f["task"], f["head_dim_k"], f["head_dim_v"]
        q = f["scratch"] + f["thread"] * f["scratch_bytes"]
        k = q + n * 4
        _normalize(f, f["q"] + _key_head(f), q, _query_scale(f))
        _normalize(f, f["k"] + _key_head(f), k)
        alpha, beta = (f.load(f32, f[name] + head * 4).splat(ROWS) for name in ("alpha", "beta"))
        decay, beta = functions.exp(f, _log_decay(f, alpha)), functions.sigmoid(f, beta)
        updates = f.buffer(4 * ROWS)
        with f.loop(n_rows, step=ROWS) as row:
            first = head * n_rows + row
            s = f["s"] + first * n * 4
            f.call(self.multiply_rows, s, n, k, updates)
            f.store(beta * (f.load(_TYPE, f["v"] + first * 4) - f.load(_TYPE, updates) * decay), updates)
            after = f["after"] + first * n * 4
            f.call(self.update_rows, s, after, n, decay.lane(0), updates, k, q, f["out"] + first * 4)


@dataclass(frozen=True)
class _Prefill:
    """Writes the way through all chunks."""

    isa: InstructionSet
    chunks: Chunks

    def write(self, f: Function) -> None:
        n_k, n_v, head = f["head_dim_k"], f["head_dim_v"], f["task"]
        queries = Rows(f["scratch"] + f["thread"] * f["scratch_bytes"], n_k * 4)
        keys = Rows(queries.base + n_k * (4 * CHUNK), n_k * 4)
        keys_transposed = Rows(keys.base + n_k * (4 * CHUNK), 4 * CHUNK)
        updates = Rows(keys_transposed.base + n_k * (4 * CHUNK), n_v * 4)
        state = Rows(updates.base + n_v * (4 * CHUNK), n_v * 4)  # (head_dim_k, head_dim_v)
        system = Rows(state.base + n_k * n_v * 4, 4 * CHUNK)
        mix = Rows(system.base + 4 * CHUNK * CHUNK, 4 * CHUNK)
        kept = head * n_k * n_v * 4
        copy_transposed(f, Rows(f["s"] + kept, n_k * 4), state, n_rows=n_v, n_columns=n_k)
        with f.loop(f["n_tokens"], step=CHUNK) as start:
            n = f.min(f["n_tokens"] - start, CHUNK)
            decays, betas = self._gates(f, start, n)
            with f.loop(n) as i:
                key_head = _key_head(f)
                _normalize(f, f["q"] + ((start + i) * f["q_bytes"] + key_head), queries.at(i), _query_scale(f))
                _normalize(f, f["k"] + ((start + i) * f["k_bytes"] + key_head), keys.at(i))
            copy_transposed(f, keys, keys_transposed, n_rows=n, n_columns=n_k)
            self.chunks.multiply_pairs(f, keys, keys_transposed, system, n=n, n_k=n_k)
            self.chunks.decay_pairs(f, system, system, decays, n)
            self.chunks.multiply(f, keys, state, updates, n_rows=n, n_k=n_k, n_columns=n_v)
            self._solve(f, system, updates, decays, betas, start=start, n=n)
            out = Rows(f["out"] + ((start * f["n_head_v"] + head) * n_v) * 4, f["n_head_v"] * n_v * 4)
            self.chunks.multiply_pairs(f, queries, keys_transposed, mix, n=n, n_k=n_k)
            self.chunks.decay_pairs(f, mix, mix, decays, n)
            self.chunks.scale_rows(f, queries, decays.since_start, n_rows=n, n=n_k)
            self.chunks.multiply(f, queries, state, out, n_rows=n, n_k=n_k, n_columns=n_v)
            self.chunks.add_earlier(f, mix, updates, out, n=n, n_columns=n_v)
            self.chunks.scale_rows(f, keys, decays.until_end, n_rows=n, n=n_k)
            self.chunks.scale_row(f, state.base, f.load(f32, decays.since_start + (n - 1) * 4), n_k * n_v)
            self.chunks.multiply(f, keys.transposed, updates, state, n_rows=n_k, n_k=n, n_columns=n_v, adds=True)
        copy_transposed(f, state, Rows(f["after"] + kept, n_k * 4), n_rows=n_k, n_columns=n_v)

    def _gates(self, f: Function, start: Value, n: Value) -> tuple[Decays, Value]:
        """Write the decays, and each token's beta."""
        logarithms, betas = f.buffer(4 * CHUNK), f.buffer(4 * CHUNK)
        head = f["task"] * 4
        for name, target in (("alpha", logarithms), ("beta", betas)):
            stride = f[f"{name}_bytes"]
            copy_column(f, f[name] + (start * stride + head), target, source_bytes=stride, n=n)
        with f.loop(n, step=self.isa.lanes) as i:
            f.store(_log_decay(f, f.load(self.isa.f32s, logarithms + i * 4)), logarithms + i * 4)
            f.store(functions.sigmoid(f, f.load(self.isa.f32s, betas + i * 4)), betas + i * 4)
        return Decays.write(f, self.isa, logarithms, n), betas

    def _solve(
        self, f: Function, system: Rows, updates: Rows, decays: Decays, betas: Value, *, start: Value, n: Value
    ) -> None:
        """Turn what the state held under the keys into the updates."""
        isa, n_v = self.isa, f["head_dim_v"]
        with f.loop(n) as token:
            beta, decay = (f.load(f32, at + token * 4) for at in (betas, decays.since_start))
            self.chunks.scale_row(f, system.at(token), 0.0 - beta, token)
            v = f["v"] + ((start + token) * f["v_bytes"] + f["task"] * n_v * 4)
            with f.loop(n_v, step=ROWS) as column:
                place = updates.at(token) + column * 4
                new = f.load(_TYPE, v + column * 4) - f.load(_TYPE, place) * decay.splat(ROWS)
                f.store(new * beta.splat(ROWS), place)
        with f.loop(n, step=ROWS) as first:
            self.chunks.multiply(
                f, system.start(first), updates, updates.start(first),
                n_rows=f.min(n - first, ROWS), n_k=first, n_columns=n_v, adds=True,
            )  # fmt: skip
            # the rest of the system's rows, a triangle; what is beyond the last token is never read
            with f.loop(n_v, step=isa.lanes) as column:
                places = [updates.at(first + i) + column * 4 for i in range(ROWS)]
                solved: list[Value] = []
                for i, place in enumerate(places):
                    value = f.load(isa.f32s, place)
                    for j, other in enumerate(solved):
                        factor = f.load(f32, system.at(first + i) + (first + j) * 4).splat(isa.lanes)
                        value = f.fma(factor, other, value)
                    f.store(value, place)
                    solved.append(value)
