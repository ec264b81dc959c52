"""State spaces with a decay for each value of the state (Mamba, arXiv 2312.00752).

There is no matrix product in them: the exponentials of the decays are most of the work. A task takes some channels
through all tokens, eight at a time, whose states stay in the nearest cache.
"""

from __future__ import annotations

from engine.kernels.compiled import functions
from engine.kernels.compiled.chunks import ROWS
from engine.kernels.compiled.ir import Function, Module, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use, divided

PARAMETERS = {
    "x": Array(Use.READ, "n_tokens n_channel", step="x_bytes"),
    "b": Array(Use.READ, "n_tokens d_state", step="b_bytes"),
    "c": Array(Use.READ, "n_tokens d_state", step="c_bytes"),
    "dt": Array(Use.READ, "n_tokens n_channel", step="dt_bytes"),
    "s": Array(Use.STATE, "n_channel d_state"),
    "a": Array(Use.READ, "n_channel d_state"),
    "d": Array(Use.READ, "n_channel"),
    "dt_bias": Array(Use.READ, "n_channel"),
    "out": Array(Use.WRITTEN, "n_tokens n_channel"),
    "after": Array(Use.NEXT_STATE, "n_channel d_state"),
    "n_tokens": i64,
    "n_channel": i64,
    "d_state": i64,
    "x_bytes": i64,
    "b_bytes": i64,
    "c_bytes": i64,
    "dt_bytes": i64,
}
_CHANNELS = 64  # of a task
_TYPE = vec(f32, ROWS)


def write_selective_scan(module: Module, isa: InstructionSet) -> None:
    """Write `selective_scan`."""
    operations = Operations(module, isa)
    operations.add("selective_scan", PARAMETERS, [(lambda f: divided(f, f["n_channel"], _CHANNELS), _write_task)])


def _write_task(f: Function) -> None:
    first, n = f["task"] * _CHANNELS, f["d_state"]
    with f.loop(f.min(first + _CHANNELS, f["n_channel"]), first, ROWS) as channel:
        s, a, state = (f[name] + channel * n * 4 for name in ("s", "a", "after"))
        with f.loop(n * ROWS, step=ROWS) as i:
            f.store(f.load(_TYPE, s + i * 4), state + i * 4)
        d, dt_bias = (f.load(_TYPE, f[name] + channel * 4) for name in ("d", "dt_bias"))
        with f.loop(f["n_tokens"]) as token:
            x = f.load(_TYPE, f["x"] + (token * f["x_bytes"] + channel * 4))
            dt = functions.softplus(f, f.load(_TYPE, f["dt"] + (token * f["dt_bytes"] + channel * 4)) + dt_bias)
            updates = dt * x
            sums = [f.variable(f.constant(_TYPE, 0.0)) for _ in range(ROWS)]
            with f.loop(n, step=ROWS) as i:
                b, c = (f.load(_TYPE, f[name] + (token * f[f"{name}_bytes"] + i * 4)) for name in ("b", "c"))
                for j, total in enumerate(sums):
                    place = n * (4 * j) + i * 4
                    decay = functions.exp(f, f.load(_TYPE, a + place) * dt.lane(j).splat(ROWS))
                    value = f.fma(updates.lane(j).splat(ROWS), b, f.load(_TYPE, state + place) * decay)
                    f.store(value, state + place)
                    total.set(f.fma(value, c, total.get()))
            out = functions.sums_of_lanes([total.get() for total in sums])
            f.store(f.fma(d, x, out), f["out"] + (token * f["n_channel"] + channel) * 4)
