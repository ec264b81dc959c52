"""A product of two small float32 matrices: the inside of attention, and of unquantized weights."""

from __future__ import annotations

from llvmlite import ir as llvm_ir

from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, ptr
from engine.kernels.compiled.isa import InstructionSet

PARAMETERS = {
    "a": ptr,  # (n_rows, n_k), elements a_row_bytes and a_k_bytes apart
    "b": ptr,  # (n_k, registers * lanes), rows b_bytes apart
    "out": ptr,  # (n_rows, registers * lanes), rows out_bytes apart
    "n_rows": i64,
    "n_k": i64,
    "a_row_bytes": i64,
    "a_k_bytes": i64,
    "b_bytes": i64,
    "out_bytes": i64,
}


def write_product(module: Module, isa: InstructionSet, n_registers: int, *, adds: bool) -> llvm_ir.Function:
    """Write out = a b, or (`adds`) out += a b, for b as wide as so many registers."""
    f = module.function(f"product_{n_registers}{'_adds' if adds else ''}", PARAMETERS)
    f.function.attributes.add("noinline")
    done = f.variable(f.constant(i64, 0))
    for tile in _tiles(isa, n_registers):
        first = done.get()
        stop = first + (f["n_rows"] - first) // tile * tile
        with f.loop(stop, first, tile) as row:
            _write_tile(f, isa, row, tile, n_registers, adds=adds)
        done.set(stop)
    return f.finish()


def _tiles(isa: InstructionSet, n_registers: int) -> tuple[int, ...]:
    """Return the numbers of rows that are computed at once: the sums fill the registers, but for the operands."""
    most = (isa.n_registers - 4) // n_registers
    return tuple(n for n in (12, 8, 6, 4, 2, 1) if n <= most)


def _write_tile(f: Function, isa: InstructionSet, row: Value, tile: int, n_registers: int, *, adds: bool) -> None:
    register_bytes = 4 * isa.lanes
    a, out = f["a"] + row * f["a_row_bytes"], f["out"] + row * f["out_bytes"]
    places = [[out + (f["out_bytes"] * t + register_bytes * r) for r in range(n_registers)] for t in range(tile)]
    zero = f.constant(isa.f32s, 0.0)
    totals = [[f.variable(f.load(isa.f32s, place) if adds else zero) for place in line] for line in places]
    with f.loop(f["n_k"]) as k:
        b = [f.load(isa.f32s, f["b"] + (k * f["b_bytes"] + register_bytes * r)) for r in range(n_registers)]
        column = a + k * f["a_k_bytes"]
        for t in range(tile):
            value = f.load(f32, column + f["a_row_bytes"] * t).splat(isa.lanes)
            for r in range(n_registers):
                totals[t][r].set(f.fma(value, b[r], totals[t][r].get()))
    for line, sums in zip(places, totals, strict=True):
        for place, total in zip(line, sums, strict=True):
            f.store(total.get(), place)


def call_product(
    f: Function,
    product: llvm_ir.Function,
    a: Value,
    b: Value,
    out: Value,
    *,
    n_rows: Value,
    n_k: Value,
    a_row_bytes: Value | int,
    a_k_bytes: Value | int,
    b_bytes: Value | int,
    out_bytes: Value | int,
) -> None:
    """Call what `write_product` wrote."""
    sizes = (n_rows, n_k, a_row_bytes, a_k_bytes, b_bytes, out_bytes)
    f.call(product, a, b, out, *(s if isinstance(s, Value) else f.constant(i64, s) for s in sizes))
