"""State spaces with one decay per head (Mamba-2, arXiv 2405.21060).

First tasks for the chunks and groups multiply what the heads of a group share, B and C; then a task takes one head
through all tokens.
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
    write_update_rows,
)
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use, divided

PARAMETERS = {
    "x": Array(Use.READ, "n_tokens n_head head_dim", step="x_bytes"),
    "b": Array(Use.READ, "n_tokens n_group d_state", step="b_bytes"),
    "c": Array(Use.READ, "n_tokens n_group d_state", step="c_bytes"),
    "dt": Array(Use.READ, "n_tokens n_head", step="dt_bytes"),
    "s": Array(Use.STATE, "n_head head_dim d_state"),
    "a": Array(Use.READ, "n_head"),
    "d": Array(Use.READ, "n_head"),
    "dt_bias": Array(Use.READ, "n_head"),
    "out": Array(Use.WRITTEN, "n_tokens n_head head_dim"),
    "after": Array(Use.NEXT_STATE, "n_head head_dim d_state"),
    "n_tokens": i64,
    "n_head": i64,
    "n_group": i64,
    "head_dim": i64,
    "d_state": i64,
    "x_bytes": i64,
    "b_bytes": i64,
    "c_bytes": i64,
    "dt_bytes": i64,
    "pairs": Array(Use.LASTING, dtype=np.uint8),  # of tokens: (chunks, groups, CHUNK, CHUNK); unused for a single token
    "scratch": Array(Use.LASTING, dtype=np.uint8),  # scratch_floats for each thread
    "scratch_bytes": i64,
}
_TYPE = vec(f32, ROWS)


def scratch_floats(head_dim: int, d_state: int) -> int:
    """Return the size of a thread's scratch memory: B transposed, or inputs, state, pairs of tokens."""
    return max(CHUNK * d_state, CHUNK * (head_dim + CHUNK) + head_dim * d_state)


def write_ssd(module: Module, isa: InstructionSet) -> None:
    """Write `ssd` and, for a single token, `ssd_step`."""
    operations = Operations(module, isa)
    prefill = _Prefill(isa, Chunks.write(module, isa))
    operations.add("ssd", PARAMETERS, [(_n_pairs, prefill.write_pairs), (_n_heads, prefill.write)])
    operations.add("ssd_step", PARAMETERS, [(_n_heads, _Step(write_update_rows(module)).write)])


def _n_pairs(f: Function) -> Value:
    return divided(f, f["n_tokens"], CHUNK) * f["n_group"]


def _n_heads(f: Function) -> Value:
    return f["n_head"]


def _group(f: Function) -> Value:
    return f["task"] // (f["n_head"] // f["n_group"])


def _of_head(f: Function, name: str) -> Value:
    return f.load(f32, f[name] + f["task"] * 4)


@dataclass(frozen=True)
class _Step:
    """Writes the update by a single token."""

    update_rows: llvm_ir.Function

    def write(self, f: Function) -> None:
        head, n, n_rows = f["task"], f["d_state"], f["head_dim"]
        b, c = (f[name] + _group(f) * n * 4 for name in ("b", "c"))
        dt = functions.softplus(f, (_of_head(f, "dt") + _of_head(f, "dt_bias")).splat(ROWS))
        decay = functions.exp(f, _of_head(f, "a").splat(ROWS) * dt).lane(0)
        d = _of_head(f, "d").splat(ROWS)
        updates = f.buffer(4 * ROWS)
        with f.loop(n_rows, step=ROWS) as row:
            first = head * n_rows + row
            x, out = f.load(_TYPE, f["x"] + first * 4), f["out"] + first * 4
            f.store(dt * x, updates)
            s, after = (f[name] + first * n * 4 for name in ("s", "after"))
            f.call(self.update_rows, s, after, n, decay, updates, b, c, out)
            f.store(f.fma(d, x, f.load(_TYPE, out)), out)


@dataclass(frozen=True)
class _Prefill:
    """Writes the way through all chunks."""

    isa: InstructionSet
    chunks: Chunks

    def _pairs(self, f: Function, chunk: Value, group: Value) -> Rows:
        return Rows(f["pairs"] + (chunk * f["n_group"] + group) * (4 * CHUNK * CHUNK), 4 * CHUNK)

    def _tokens(self, f: Function, name: str, start: Value, index: Value, size: Value) -> Rows:
        """Return a head's or a group's rows of `name` from the token `start` on."""
        stride = f[f"{name}_bytes"]
        return Rows(f[name] + (start * stride + index * size * 4), stride)

    def write_pairs(self, f: Function) -> None:
        """Write the products of each token's C with the B of it and those before it, for a chunk and a group."""
        chunk, group, n_state = f["task"] // f["n_group"], f["task"] % f["n_group"], f["d_state"]
        start = chunk * CHUNK
        n = f.min(f["n_tokens"] - start, CHUNK)
        b, c = (self._tokens(f, name, start, group, n_state) for name in ("b", "c"))
        b_transposed = Rows(f["scratch"] + f["thread"] * f["scratch_bytes"], 4 * CHUNK)
        copy_transposed(f, b, b_transposed, n_rows=n, n_columns=n_state)
        self.chunks.multiply_pairs(f, c, b_transposed, self._pairs(f, chunk, group), n=n, n_k=n_state)

    def write(self, f: Function) -> None:
        n_dim, n_state, head, group = f["head_dim"], f["d_state"], f["task"], _group(f)
        inputs = Rows(f["scratch"] + f["thread"] * f["scratch_bytes"], n_dim * 4)
        state = Rows(inputs.base + n_dim * (4 * CHUNK), n_dim * 4)  # (d_state, head_dim)
        mix = Rows(state.base + n_dim * n_state * 4, 4 * CHUNK)
        kept = head * n_dim * n_state * 4
        copy_transposed(f, Rows(f["s"] + kept, n_state * 4), state, n_rows=n_dim, n_columns=n_state)
        with f.loop(f["n_tokens"], step=CHUNK) as start:
            n = f.min(f["n_tokens"] - start, CHUNK)
            b, c = (self._tokens(f, name, start, group, n_state) for name in ("b", "c"))
            x = self._tokens(f, "x", start, head, n_dim)
            out = Rows(f["out"] + (start * f["n_head"] + head) * n_dim * 4, f["n_head"] * n_dim * 4)
            dt, decays = self._gates(f, start, n)
            with f.loop(n) as i:
                self.chunks.scale_row(f, x.at(i), f.load(f32, dt + i * 4), n_dim, out=inputs.at(i))
            self.chunks.decay_pairs(f, self._pairs(f, start // CHUNK, group), mix, decays, n)
            self.chunks.multiply(f, c, state, out, n_rows=n, n_k=n_state, n_columns=n_dim)
            d = _of_head(f, "d").splat(ROWS)
            with f.loop(n) as i:
                decay = f.load(f32, decays.since_start + i * 4).splat(ROWS)
                with f.loop(n_dim, step=ROWS) as j:
                    place = out.at(i) + j * 4
                    f.store(f.fma(d, f.load(_TYPE, x.at(i) + j * 4), f.load(_TYPE, place) * decay), place)
            self.chunks.add_earlier(f, mix, inputs, out, n=n, n_columns=n_dim)
            self.chunks.scale_rows(f, inputs, decays.until_end, n_rows=n, n=n_dim)
            self.chunks.scale_row(f, state.base, f.load(f32, decays.since_start + (n - 1) * 4), n_dim * n_state)
            self.chunks.multiply(f, b.transposed, inputs, state, n_rows=n_state, n_k=n, n_columns=n_dim, adds=True)
        copy_transposed(f, state, Rows(f["after"] + kept, n_state * 4), n_rows=n_state, n_columns=n_dim)

    def _gates(self, f: Function, start: Value, n: Value) -> tuple[Value, Decays]:
        """Write each token's time step, and the decays."""
        dt, logarithms = f.buffer(4 * CHUNK), f.buffer(4 * CHUNK)
        stride = f["dt_bytes"]
        copy_column(f, f["dt"] + (start * stride + f["task"] * 4), dt, source_bytes=stride, n=n)
        a, dt_bias = (_of_head(f, name).splat(self.isa.lanes) for name in ("a", "dt_bias"))
        with f.loop(n, step=self.isa.lanes) as i:
            step = functions.softplus(f, f.load(self.isa.f32s, dt + i * 4) + dt_bias)
            f.store(step, dt + i * 4)
            f.store(a * step, logarithms + i * 4)
        return dt, Decays.write(f, self.isa, logarithms, n)
