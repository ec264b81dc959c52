"""Norms, rotations and activations: a pass over memory each."""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels.compiled import functions
from engine.kernels.compiled.ir import Function, Module, Type, Value, f16, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Operations, array, divided

ROWS_PER_TASK = 8
NORM = {
    "x": array,  # rows of n values, n_heads of them side by side, x_bytes from there to the next ones
    "weight": array,
    "out": array,  # contiguous
    "n_rows": i64,
    "n": i64,
    "n_heads": i64,
    "x_bytes": i64,
    "eps": f32,
}
ROPE = {
    "x": array,  # (n_tokens, n_heads, head_dim), tokens x_bytes apart
    "cos": array,  # (n_tokens, half)
    "sin": array,
    "out": array,  # contiguous
    "n_tokens": i64,
    "n_heads": i64,
    "head_dim": i64,
    "half": i64,
    "x_bytes": i64,
}
ACTIVATION = {
    "gate": array,  # (n_rows, n), rows gate_bytes apart
    "up": array,  # (n_rows, n), rows up_bytes apart
    "out": array,  # contiguous
    "n_rows": i64,
    "n": i64,
    "gate_bytes": i64,
    "up_bytes": i64,
}

ADD = {"x": array, "y": array, "out": array, "n_rows": i64, "n": i64, "x_bytes": i64, "y_bytes": i64}
"""x and y are (n_rows, n), rows x_bytes and y_bytes apart; `out` is contiguous."""
STORE = {"x": array, "rows": array, "n_rows": i64, "n": i64, "x_bytes": i64, "rows_bytes": i64}
"""Both are (n_rows, n), rows so many bytes apart."""
STORED_TYPES = {"store_f16": f16, "store_f32": f32}

Activation = Callable[[Function, Value], Value]
ACTIVATIONS: dict[str, Activation] = {}


def _activation(write: Activation) -> Activation:
    ACTIVATIONS[f"{write.__name__.removeprefix('_')}_mul"] = write
    return write


@_activation
def _silu(f: Function, x: Value) -> Value:
    return x / (functions.exp(f, 0.0 - x) + 1.0)


@_activation
def _sigmoid(f: Function, x: Value) -> Value:
    return functions.sigmoid(f, x)


@_activation
def _gelu(f: Function, x: Value) -> Value:
    # 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
    u = x * 0.7978845608028654 * f.fma(x * x, f.constant(x.type, 0.044715), f.constant(x.type, 1.0))
    return x * functions.sigmoid(f, u * 2.0)


def write_elementwise(module: Module, isa: InstructionSet) -> None:
    """Write `rms_norm`, `rope_halves`, `rope_neighbors`, `add`, the conversions to K/V types and the activations."""
    operations = Operations(module, isa)

    def rows(f: Function) -> Value:
        return divided(f, f["n_rows"], ROWS_PER_TASK)

    def tokens(f: Function) -> Value:
        return f["n_tokens"]

    operations.add("rms_norm", NORM, [(rows, lambda f: _by_rows(f, lambda row: _rms_norm(f, isa, row)))])
    operations.add("rope_halves", ROPE, [(tokens, lambda f: _rope_token(f, isa, interleaved=False))])
    operations.add("rope_neighbors", ROPE, [(tokens, lambda f: _rope_token(f, isa, interleaved=True))])
    operations.add("add", ADD, [(rows, lambda f: _by_rows(f, lambda row: _add(f, isa, row)))])
    for name, type_ in STORED_TYPES.items():

        def store(f: Function, type_: Type = type_) -> None:
            _by_rows(f, lambda row: _store(f, isa, row, type_))

        operations.add(name, STORE, [(rows, store)])
    for name, activation in ACTIVATIONS.items():

        def activate(f: Function, activation: Activation = activation) -> None:
            _by_rows(f, lambda row: _activate(f, isa, row, activation))

        operations.add(name, ACTIVATION, [(rows, activate)])


def _by_rows(f: Function, write_row: Callable[[Value], None]) -> None:
    first = f["task"] * ROWS_PER_TASK
    with f.loop(f.min(first + ROWS_PER_TASK, f["n_rows"]), first) as row:
        write_row(row)


def _in_registers(f: Function, isa: InstructionSet, n: Value, write: Callable[[Value, int], None]) -> None:
    """Write a loop over n values, as many at once as a register holds, the rest one by one."""
    whole = n // isa.lanes * isa.lanes
    with f.loop(whole, step=isa.lanes) as i:
        write(i, isa.lanes)
    with f.loop(n, whole) as i:
        write(i, 1)


def _rms_norm(f: Function, isa: InstructionSet, row: Value) -> None:
    n = f["n"]
    x = f["x"] + (row // f["n_heads"] * f["x_bytes"] + row % f["n_heads"] * n * 4)
    out = f["out"] + row * n * 4
    squares = {lanes: f.variable(f.constant(vec(f32, lanes), 0.0)) for lanes in (isa.lanes, 1)}

    def add(i: Value, lanes: int) -> None:
        value = f.load(vec(f32, lanes), x + i * 4)
        squares[lanes].set(f.fma(value, value, squares[lanes].get()))

    _in_registers(f, isa, n, add)
    total = functions.sum_of_lanes(f, squares[isa.lanes].get()) + squares[1].get().lane(0)
    factor = 1.0 / f.elementwise("sqrt", total / n.to(f32) + f["eps"])

    def scale(i: Value, lanes: int) -> None:
        type_ = vec(f32, lanes)
        value = f.load(type_, x + i * 4) * factor.splat(lanes) * f.load(type_, f["weight"] + i * 4)
        f.store(value, out + i * 4)

    _in_registers(f, isa, n, scale)


def _add(f: Function, isa: InstructionSet, row: Value) -> None:
    x, y, out = f["x"] + row * f["x_bytes"], f["y"] + row * f["y_bytes"], f["out"] + row * f["n"] * 4

    def write(i: Value, lanes: int) -> None:
        type_ = vec(f32, lanes)
        f.store(f.load(type_, x + i * 4) + f.load(type_, y + i * 4), out + i * 4)

    _in_registers(f, isa, f["n"], write)


def _store(f: Function, isa: InstructionSet, row: Value, type_: Type) -> None:
    x, out = f["x"] + row * f["x_bytes"], f["rows"] + row * f["rows_bytes"]

    def write(i: Value, lanes: int) -> None:
        values = f.load(vec(f32, lanes), x + i * 4)
        f.store(values.to(vec(type_, lanes)), out + i * (2 if type_ is f16 else 4))

    _in_registers(f, isa, f["n"], write)


def _activate(f: Function, isa: InstructionSet, row: Value, activation: Activation) -> None:
    gate, up = f["gate"] + row * f["gate_bytes"], f["up"] + row * f["up_bytes"]
    out = f["out"] + row * f["n"] * 4

    def write(i: Value, lanes: int) -> None:
        type_ = vec(f32, lanes)
        value = activation(f, f.load(type_, gate + i * 4)) * f.load(type_, up + i * 4)
        f.store(value, out + i * 4)

    _in_registers(f, isa, f["n"], write)


def _rope_token(f: Function, isa: InstructionSet, *, interleaved: bool) -> None:
    """Rotate the heads of token number `task`."""
    half, head_dim, token = f["half"], f["head_dim"], f["task"]
    cos, sin = (f[name] + token * half * 4 for name in ("cos", "sin"))
    with f.loop(f["n_heads"]) as head:
        x = f["x"] + (token * f["x_bytes"] + head * head_dim * 4)
        out = f["out"] + (token * f["n_heads"] + head) * head_dim * 4

        def rotate(i: Value, lanes: int, x: Value = x, out: Value = out) -> None:
            type_ = vec(f32, lanes)
            c, s = f.load(type_, cos + i * 4), f.load(type_, sin + i * 4)
            if interleaved:
                pairs = f.load(vec(f32, 2 * lanes), x + i * 8)
                a, b = pairs.shuffle(range(0, 2 * lanes, 2)), pairs.shuffle(range(1, 2 * lanes, 2))
            else:
                a, b = f.load(type_, x + i * 4), f.load(type_, x + (half + i) * 4)
            first, second = a * c - b * s, a * s + b * c
            if interleaved:
                order = [k for j in range(lanes) for k in (j, lanes + j)]
                f.store(first.shuffle(order, second), out + i * 8)
            else:
                f.store(first, out + i * 4)
                f.store(second, out + (half + i) * 4)

        _in_registers(f, isa, half, rotate)
        with f.loop(head_dim, half * 2) as i:
            f.store(f.load(f32, x + i * 4), out + i * 4)
