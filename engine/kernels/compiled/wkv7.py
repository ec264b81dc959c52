"""RWKV-7's recurrence (arXiv 2503.14456); a task takes one head through all tokens.

A decay for each value of a key would have to be multiplied into the keys before they could be multiplied with each
other. A head's state is so small that it stays in the nearest cache, and token by token is faster.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from llvmlite import ir as llvm_ir

from engine.kernels.compiled import functions
from engine.kernels.compiled.chunks import ROWS, write_multiply_rows
from engine.kernels.compiled.ir import Function, Module, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use

PARAMETERS = {
    **dict.fromkeys(("r", "k", "v", "log_w", "a", "b"), Array(Use.READ, "n_tokens n_head head_dim")),
    "s": Array(Use.STATE, "n_head head_dim head_dim"),
    "out": Array(Use.WRITTEN, "n_tokens n_head head_dim"),
    "after": Array(Use.NEXT_STATE, "n_head head_dim head_dim"),
    "n_tokens": i64,
    "n_head": i64,
    "head_dim": i64,
    "scratch": Array(Use.LASTING, dtype=np.uint8),  # head_dim float32 values for each thread
}
_TYPE = vec(f32, ROWS)


def write_wkv7(module: Module, isa: InstructionSet) -> None:
    """Write `wkv7`."""
    task = partial(_write_task, multiply_rows=write_multiply_rows(module))
    Operations(module, isa).add("wkv7", PARAMETERS, [(lambda f: f["n_head"], task)])


def _write_task(f: Function, *, multiply_rows: llvm_ir.Function) -> None:
    head, n = f["task"], f["head_dim"]
    decays = f["scratch"] + f["thread"] * n * 4
    s, state = (f[name] + head * n * n * 4 for name in ("s", "after"))
    removed = f.buffer(4 * ROWS)
    with f.loop(n * n, step=ROWS) as i:
        f.store(f.load(_TYPE, s + i * 4), state + i * 4)
    with f.loop(f["n_tokens"]) as token:
        r, k, v, log_w, a, b, out = (
            f[name] + (token * f["n_head"] + head) * n * 4 for name in ("r", "k", "v", "log_w", "a", "b", "out")
        )
        with f.loop(n, step=ROWS) as i:
            f.store(functions.exp(f, f.load(_TYPE, log_w + i * 4)), decays + i * 4)
        with f.loop(n, step=ROWS) as row:
            rows = state + row * n * 4
            f.call(multiply_rows, rows, n, a, removed)
            sums = [f.variable(f.constant(_TYPE, 0.0)) for _ in range(ROWS)]
            with f.loop(n, step=ROWS) as i:
                decay, key, back, query = (f.load(_TYPE, at + i * 4) for at in (decays, k, b, r))
                for j, total in enumerate(sums):
                    place = rows + (n * (4 * j) + i * 4)
                    value = f.load(_TYPE, place) * decay
                    value = f.fma(f.load(f32, removed + 4 * j).splat(ROWS), back, value)
                    value = f.fma(f.load(f32, v + (row * 4 + 4 * j)).splat(ROWS), key, value)
                    f.store(value, place)
                    total.set(f.fma(value, query, total.get()))
            f.store(functions.sums_of_lanes([total.get() for total in sums]), out + row * 4)
