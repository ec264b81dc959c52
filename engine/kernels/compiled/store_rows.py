"""Conversions of K and V rows to the types that they are kept in, with the bits of `kv_types.quantize_rows`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.kernels.compiled.elementwise import ROWS_PER_TASK, by_rows, in_registers
from engine.kernels.compiled.ir import Function, Module, Type, Value, f16, f32, i8, i32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Count, Operations, Parameters, Task, Use, divided
from engine.kernels.kv_types import BLOCK_SIZE, KV_TYPES, Q4_0, Q8_0, RowSpan

_LANES = 8
_TYPE = vec(f32, _LANES)
_INTEGERS = vec(i32, _LANES)
_SMALLEST = 2.0**-126  # normal number

Convert = Callable[[Function, Value, Value], None]  # writes the conversion of f["n"] values, from the first address


def parameters(kv_type: str) -> Parameters:
    """Return the parameters of the operation for a K/V type."""
    return {
        "x": Array(Use.READ, "n_rows n_head_kv head_dim", step="x_bytes"),
        "rows": Array(Use.LASTING, ". n_head_kv .", KV_TYPES[kv_type], step="rows_bytes"),  # the buffer
        "span": Array(Use.LASTING, "3", np.int64),  # its last rows are written, see kv_types.RowSpan
        "n_rows": i64,
        "n_head_kv": i64,
        "head_dim": i64,
        "x_bytes": i64,
        "rows_bytes": i64,
    }


def write_store_rows(module: Module, isa: InstructionSet) -> None:
    """Write an operation for each K/V type, of its name."""
    operations = Operations(module, isa)
    conversions: dict[str, Convert] = {
        "f16": lambda f, x, out: _convert(f, isa, x, out, f16),
        "f32": lambda f, x, out: _convert(f, isa, x, out, f32),
        "q8_0": lambda f, x, out: _quantize(f, x, out, Q8_0.itemsize, _quantize_q8_0),
        "q4_0": lambda f, x, out: _quantize(f, x, out, Q4_0.itemsize, _quantize_q4_0),
    }
    for name, convert in conversions.items():

        def store(f: Function, convert: Convert = convert) -> None:
            by_rows(f, lambda row: convert(f, f["x"] + row * f["x_bytes"], f["rows"] + row * f["rows_bytes"]))

        phases: list[tuple[Count, Task]] = [(lambda f: divided(f, f["n_rows"], ROWS_PER_TASK), store)]
        operations.add(name, parameters(name), phases, _last_rows)


def _last_rows(f: Function) -> dict[str, Value]:
    end = f.load(i64, f["span"] + RowSpan.END, align=8)
    return {"rows": f["rows"] + (end - f["n_rows"]) * f["rows_bytes"], "n": f["n_head_kv"] * f["head_dim"]}


def _convert(f: Function, isa: InstructionSet, x: Value, out: Value, type_: Type) -> None:
    def write(i: Value, lanes: int) -> None:
        values = f.load(vec(f32, lanes), x + i * 4)
        f.store(values.to(vec(type_, lanes)), out + i * (2 if type_ is f16 else 4))

    in_registers(f, isa, f["n"], write)


def _quantize(f: Function, x: Value, out: Value, block_bytes: int, write: Convert) -> None:
    with f.loop(f["n"] // BLOCK_SIZE) as block:
        write(f, x + block * (4 * BLOCK_SIZE), out + block * block_bytes)


def _quantize_q8_0(f: Function, x: Value, out: Value) -> None:
    values = [f.load(_TYPE, x + 4 * _LANES * i) for i in range(BLOCK_SIZE // _LANES)]
    largest = _magnitude(values[0]).bits(_INTEGERS)  # which compare as the numbers do
    for value in values[1:]:
        largest = f.elementwise("smax", largest, _magnitude(value).bits(_INTEGERS))
    d = f.intrinsic(f"llvm.vector.reduce.smax.v{_LANES}i32", i32, largest).bits(f32) / 127.0
    f.store(d.to(f16), out)
    inverse = _inverse(f, d).splat(_LANES)
    for i, value in enumerate(values):
        scaled = value * inverse
        rounded = (_magnitude(scaled) + 0.5).to(_INTEGERS)  # halves away from zero
        signed = f.select(scaled < 0.0, 0 - rounded, rounded)
        f.store(signed.to(vec(i8, _LANES)), out + (2 + _LANES * i))


def _quantize_q4_0(f: Function, x: Value, out: Value) -> None:
    extreme = f.variable(f.load(f32, x))
    with f.loop(BLOCK_SIZE, 1) as i:
        value = f.load(f32, x + i * 4)
        is_larger = _magnitude(value).bits(i32) > _magnitude(extreme.get()).bits(i32)  # also where it is NaN
        extreme.set(f.select(is_larger, value, extreme.get()))
    d = extreme.get() / -8.0
    f.store(d.to(f16), out)
    inverse = _inverse(f, d).splat(_LANES)

    def quants(i: int) -> Value:
        shifted = f.load(_TYPE, x + 4 * _LANES * i) * inverse + 8.5
        return f.select(shifted < 15.0, shifted, f.constant(_TYPE, 15.0)).to(_INTEGERS)

    for half in range(2):
        both = quants(half) | (quants(half + 2) << 4)
        f.store(both.to(vec(i8, _LANES)), out + (2 + _LANES * half))


def _magnitude(value: Value) -> Value:
    type_ = value.type
    integers = i32 if type_ is f32 else _INTEGERS
    return (value.bits(integers) & 0x7FFFFFFF).bits(type_)


def _inverse(f: Function, d: Value) -> Value:
    """Return 1 / d; 0 where d is so small that the inverse overflows."""
    return f.select(_magnitude(d) < _SMALLEST, f.constant(f32, 0.0), 1.0 / d)
