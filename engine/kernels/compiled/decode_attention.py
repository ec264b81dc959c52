"""Attention of one token: the lanes of the registers run along the heads, and along the rows for the softmax.

With a token alone there are too few queries to fill registers with them, as `attention` does.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir as llvm_ir

from engine.kernels.compiled import functions
from engine.kernels.compiled.attention import LOWEST, ROWS, complete, convert_rows, parameters, write_convert
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, ptr, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Operations

_LANES = 8  # what every head's size is a multiple of
_REGISTERS = (8, 4, 1)  # of a head's values that are summed up at once: enough that no sum waits for the one before
_TYPE = vec(f32, _LANES)


def partial_floats(head_dim_v: int) -> int:
    """Return the size of what a task leaves for a head: its values, then its maximum and sum."""
    return head_dim_v + 2


def scratch_floats(head_dim_k: int, head_dim_v: int) -> int:
    """Return the size of a thread's scratch memory: the rows as float32, the scores, the query."""
    return ROWS * (head_dim_k + head_dim_v + 1) + head_dim_k


def write_decode_attention(module: Module, isa: InstructionSet, kv_type: str) -> None:
    """Write `decode_attention` for a K/V type: a task for each K/V head and chunk of rows."""
    operations = Operations(module, isa)
    convert = write_convert(module, kv_type)
    weigh = _write_weigh(module)
    add = _write_add_values(module)

    def part(f: Function, chunk: Value, head: Value) -> Value:
        return f["partial"] + (chunk * f["n_head_kv"] * f["n_group"] + head) * (f["head_dim_v"] + 2) * 4

    def attend(f: Function) -> None:
        head, chunk = f["task"] % f["n_head_kv"], f["task"] // f["n_head_kv"]
        scratch = f["scratch"] + f["thread"] * f["scratch_bytes"]
        k32, v32 = scratch, scratch + f["head_dim_k"] * (4 * ROWS)
        scores = v32 + f["head_dim_v"] * (4 * ROWS)
        query = scores + 4 * ROWS
        with f.loop(f["n_group"]) as member:
            result = part(f, chunk, head * f["n_group"] + member)
            with f.loop(f["head_dim_v"], step=_LANES) as i:
                f.store(f.constant(_TYPE, 0.0), result + i * 4)
            f.store(f.constant(f32, LOWEST), result + f["head_dim_v"] * 4)
            f.store(f.constant(f32, 0.0), result + (f["head_dim_v"] + 1) * 4)
        end = f["q_start"] - f["k_start"] + 1
        first_seen = end - f["n_swa"]
        low = chunk * f["rows_per_task"]
        start = f.select(first_seen > low, first_seen, low)
        stop = f.min(f.min(low + f["rows_per_task"], f["n_rows"]), end)
        with f.loop(stop, start, ROWS) as row:
            n_rows = f.min(stop - row, ROWS)
            convert_rows(f, convert, kv_type, row=row, n_rows=n_rows, head=head, k32=k32, v32=v32)
            with f.loop(f["n_group"]) as member:
                q = f["q"] + (head * f["n_group"] + member) * f["head_dim_k"] * 4
                with f.loop(f["head_dim_k"], step=_LANES) as i:
                    f.store(f.load(_TYPE, q + i * 4) * f["scale"].splat(_LANES), query + i * 4)
                result = part(f, chunk, head * f["n_group"] + member)
                numbers = result + f["head_dim_v"] * 4
                factor = f.call(weigh, query, k32, scores, n_rows, f["head_dim_k"], f["softcap"], numbers)
                f.call(add, scores, v32, result, n_rows, f["head_dim_v"], factor)

    def merge(f: Function) -> None:
        head = f["task"]
        largest = f.variable(f.constant(f32, LOWEST))
        has_sink = f["has_sinks"].equals(1)
        with f.when(has_sink):
            largest.set(f.load(f32, f["sinks"] + head * 4))
        sink = largest.get()
        with f.loop(f["n_chunks"]) as chunk:
            maximum = f.load(f32, part(f, chunk, head) + f["head_dim_v"] * 4)
            largest.set(f.select(maximum > largest.get(), maximum, largest.get()))
        top = largest.get()

        def weight(value: Value) -> Value:
            return functions.exp(f, (value - top).splat(_LANES))

        total = f.variable(f.constant(f32, 0.0))
        with f.when(has_sink):
            total.set(weight(sink).lane(0))
        out = f["out"] + head * f["head_dim_v"] * 4
        with f.loop(f["head_dim_v"], step=_LANES) as i:
            f.store(f.constant(_TYPE, 0.0), out + i * 4)
        with f.loop(f["n_chunks"]) as chunk:
            source = part(f, chunk, head)
            numbers = source + f["head_dim_v"] * 4
            factor = weight(f.load(f32, numbers))
            total.set(f.fma(f.load(f32, numbers + 4), factor.lane(0), total.get()))
            with f.loop(f["head_dim_v"], step=_LANES) as i:
                f.store(f.fma(f.load(_TYPE, source + i * 4), factor, f.load(_TYPE, out + i * 4)), out + i * 4)
        inverse = (1.0 / total.get()).splat(_LANES)
        with f.loop(f["head_dim_v"], step=_LANES) as i:
            f.store(f.load(_TYPE, out + i * 4) * inverse, out + i * 4)

    operations.add(
        "decode_attention",
        parameters(kv_type),
        [
            (lambda f: f["n_head_kv"] * f["n_chunks"], attend),
            (lambda f: f["n_head_kv"] * f["n_group"], merge),
        ],
        partial(complete, kv_type),
    )


def _write_weigh(module: Module) -> llvm_ir.Function:
    """Write the weights of a block of rows for a query; returns the factor of what was seen before."""
    parameters = {"q": ptr, "k": ptr, "scores": ptr, "n_rows": i64, "n": i64, "softcap": f32, "numbers": ptr}
    f = module.function("weigh_rows", parameters, result=f32)
    f.function.attributes.add("noinline")
    before = f.load(f32, f["numbers"])
    largest = f.variable(f.constant(_TYPE, LOWEST))
    hidden = f.constant(_TYPE, float("-inf"))
    numbers = f.lanes(i64, range(_LANES))
    with f.loop(f["n_rows"], step=_LANES) as row:
        at = f["k"] + row * f["n"] * 4
        sums = [f.variable(f.constant(_TYPE, 0.0)) for _ in range(_LANES)]
        with f.loop(f["n"], step=_LANES) as i:
            q = f.load(_TYPE, f["q"] + i * 4)
            for j, total in enumerate(sums):
                k = f.load(_TYPE, at + (i * 4 + f["n"] * (4 * j)))
                total.set(f.fma(q, k, total.get()))
        score = functions.sums_of_lanes([total.get() for total in sums])
        capped = f.variable(score)
        with f.when(f["softcap"] > 0.0):
            cap = f["softcap"].splat(_LANES)
            capped.set(functions.tanh(f, score / cap) * cap)
        # what lies behind the last row was never written
        seen = (numbers + row.splat(_LANES)) < f["n_rows"].splat(_LANES)
        score = f.select(seen, capped.get(), hidden)
        f.store(score, f["scores"] + row * 4)
        largest.set(f.select(score > largest.get(), score, largest.get()))
    top = f.variable(before)
    for j in range(_LANES):
        lane = largest.get().lane(j)
        top.set(f.select(lane > top.get(), lane, top.get()))
    now = top.get()
    total = f.variable(f.constant(_TYPE, 0.0))
    with f.loop(f["n_rows"], step=_LANES) as row:
        weight = functions.exp(f, f.load(_TYPE, f["scores"] + row * 4) - now.splat(_LANES))
        f.store(weight, f["scores"] + row * 4)
        total.set(total.get() + weight)
    factor = functions.exp(f, (before - now).splat(_LANES)).lane(0)
    summed = f.fma(f.load(f32, f["numbers"] + 4), factor, functions.sum_of_lanes(f, total.get()))
    f.store(now, f["numbers"])
    f.store(summed, f["numbers"] + 4)
    return f.finish(factor)


def _write_add_values(module: Module) -> llvm_ir.Function:
    """Write the addition of a block's weighted values to those that were seen before."""
    parameters = {"weights": ptr, "v": ptr, "out": ptr, "n_rows": i64, "n": i64, "factor": f32}
    f = module.function("add_values", parameters)
    f.function.attributes.add("noinline")
    factor = f["factor"].splat(_LANES)

    def add(i: Value, n_registers: int) -> None:
        places = [f["out"] + (i * 4 + 4 * _LANES * r) for r in range(n_registers)]
        sums = [f.variable(f.load(_TYPE, place) * factor) for place in places]
        with f.loop(f["n_rows"]) as row:
            weight = f.load(f32, f["weights"] + row * 4).splat(_LANES)
            at = f["v"] + (row * f["n"] + i) * 4
            for r, total in enumerate(sums):
                total.set(f.fma(weight, f.load(_TYPE, at + 4 * _LANES * r), total.get()))
        for place, total in zip(places, sums, strict=True):
            f.store(total.get(), place)

    done = f.variable(f.constant(i64, 0))
    for n_registers in _REGISTERS:
        start, step = done.get(), _LANES * n_registers
        stop = start + (f["n"] - start) // step * step
        with f.loop(stop, start, step) as i:
            add(i, n_registers)
        done.set(stop)
    return f.finish()
