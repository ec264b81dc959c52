"""Products with weights that are not quantized.

Groups of 16 rows lie with the values of one input side by side: (n_groups, n_in, 16), in the file's own type.
"""

from __future__ import annotations

from engine.kernels.compiled.ir import Function, Module, Type, Value, Variable, f16, f32, i16, i32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.matmul import PARAMETERS, TAKE_ROWS, TOKENS_PER_CHUNK, complete, matmul_tasks, matvec_tasks
from engine.kernels.compiled.operation import Operations
from engine.kernels.compiled.product import call_product, write_product
from engine.kernels.layout import GROUP

_SUMS = 4  # separate sums of a matrix-vector product, so that one addition need not wait for the one before


def strip_nbytes(n_in: int) -> int:
    """Return the bytes of a strip: a group of rows in float32, and the results of a chunk of tokens."""
    return 4 * GROUP * (n_in + TOKENS_PER_CHUNK)


def write_float_matmul(module: Module, isa: InstructionSet, type_name: str) -> None:
    """Write `matvec`, `matmul` and `take_rows` for weights of the type `f32`, `f16` or `bf16`."""
    operations = Operations(module, isa)
    product = write_product(module, isa, GROUP // isa.lanes, adds=False)
    width = 4 if type_name == "f32" else 2

    def load(f: Function, address: Value, lanes: int) -> Value:
        wide: Type = vec(f32, lanes)
        match type_name:
            case "f32":
                return f.load(wide, address)
            case "f16":
                return f.load(vec(f16, lanes), address).to(wide)
            case _:
                return (f.load(vec(i16, lanes), address).unsigned_to(vec(i32, lanes)) << 16).bits(wide)

    def group_address(f: Function, group: Value) -> Value:
        return f["weight"] + group * f["n_in"] * (GROUP * width)

    def matvec(f: Function) -> None:
        first = f["task"] * f["groups_per_task"]
        strip = f["strips"] + f["thread"] * f["strip_bytes"]
        with f.loop(f.min(first + f["groups_per_task"], f["n_groups"]), first) as group:
            at = group_address(f, group)
            zero = f.constant(isa.f32s, 0.0)
            halves = range(GROUP // isa.lanes)
            sums = [[f.variable(zero) for _ in halves] for _ in range(_SUMS)]

            def add(k: Value, line: list[Variable], at: Value = at) -> None:
                x = f.load(f32, f["x"] + k * 4).splat(isa.lanes)
                for h, total in enumerate(line):
                    weights = load(f, at + (k * (GROUP * width) + isa.lanes * width * h), isa.lanes)
                    total.set(f.fma(x, weights, total.get()))

            whole = f["n_in"] // _SUMS * _SUMS
            with f.loop(whole, step=_SUMS) as k:
                for i, line in enumerate(sums):
                    add(k + i, line)
            with f.loop(f["n_in"], whole) as k:
                add(k, sums[0])
            for h in halves:
                total = (sums[0][h].get() + sums[1][h].get()) + (sums[2][h].get() + sums[3][h].get())
                f.store(total, strip + 4 * isa.lanes * h)
            _copy(f, strip, f["out"] + group * (4 * GROUP), f["n_out"] - group * GROUP)

    def matmul(f: Function) -> None:
        group, first = f["task"] % f["n_groups"], f["task"] // f["n_groups"] * TOKENS_PER_CHUNK
        n_tokens = f.min(f["n_tokens"] - first, TOKENS_PER_CHUNK)
        results = f["strips"] + f["thread"] * f["strip_bytes"]
        strip = results + 4 * GROUP * TOKENS_PER_CHUNK
        with f.loop(f["n_in"] * GROUP, step=isa.lanes) as i:
            f.store(load(f, group_address(f, group) + i * width, isa.lanes), strip + i * 4)
        x = f["x"] + first * f["n_in"] * 4
        call_product(
            f, product, x, strip, results,
            n_rows=n_tokens, n_k=f["n_in"],
            a_row_bytes=f["n_in"] * 4, a_k_bytes=4, b_bytes=4 * GROUP, out_bytes=4 * GROUP,
        )  # fmt: skip
        with f.loop(n_tokens) as token:
            out = f["out"] + ((first + token) * f["out_bytes"] + group * (4 * GROUP))
            _copy(f, results + token * (4 * GROUP), out, f["n_out"] - group * GROUP)

    def take_row(f: Function) -> None:
        row = f.load(i32, f["x"] + f["task"] * 4).to(i64)
        at = group_address(f, row // GROUP) + row % GROUP * width
        out = f["out"] + f["task"] * f["out_bytes"]
        with f.loop(f["n_in"]) as k:
            f.store(load(f, at + k * (GROUP * width), 1), out + k * 4)

    operations.add("matvec", PARAMETERS, [(matvec_tasks, matvec)], complete)
    operations.add("matmul", PARAMETERS, [(matmul_tasks, matmul)], complete)
    operations.add("take_rows", TAKE_ROWS, [(lambda f: f["n_tokens"], take_row)], complete)


def _copy(f: Function, source: Value, out: Value, n: Value) -> None:
    """Copy a group's results, or as many as there are rows in the last group."""
    with f.either(n >= GROUP) as (whole, part):
        with whole:
            f.store(f.load(vec(f32, GROUP), source), out)
        with part, f.loop(n) as i:
            f.store(f.load(f32, source + i * 4), out + i * 4)
