"""Norms, rotations and activations: a pass over memory each."""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels.compiled import functions
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use, divided

ROWS_PER_TASK = 8
NORM = {
    "x": Array(Use.READ, ". n_heads n", step="x_bytes"),  # rows of n values, n_heads of them side by side
    "weight": Array(Use.READ, "n_weights n"),  # for the rows in turn
    "out": Array(Use.WRITTEN),  # of the rows
    "n_rows": i64,
    "n": i64,
    "n_heads": i64,
    "x_bytes": i64,
    "n_weights": i64,
    "eps": f32,
}
ROPE = {
    "x": Array(Use.READ, "n_tokens n_heads head_dim", step="x_bytes"),
    "cos": Array(Use.READ, "n_tokens half"),
    "sin": Array(Use.READ, "n_tokens half"),
    "out": Array(Use.WRITTEN, "n_tokens n_heads head_dim"),
    "n_tokens": i64,
    "n_heads": i64,
    "head_dim": i64,
    "half": i64,
    "x_bytes": i64,
}
ACTIVATION = {
    "gate": Array(Use.READ, "n_rows n", step="gate_bytes"),
    "up": Array(Use.READ, "n_rows n", step="up_bytes"),
    "out": Array(Use.WRITTEN, "n_rows n"),
    "n_rows": i64,
    "n": i64,
    "gate_bytes": i64,
    "up_bytes": i64,
}

ADD = {
    "x": Array(Use.READ, "n_rows n", step="x_bytes"),
    "y": Array(Use.READ, "n_rows n", step="y_bytes"),
    "out": Array(Use.WRITTEN, "n_rows n"),
    "n_rows": i64,
    "n": i64,
    "x_bytes": i64,
    "y_bytes": i64,
    "scale": f32,
}

Activation = Callable[[Function, Value], Value]


def _silu(f: Function, x: Value) -> Value:
    return x / (functions.exp(f, 0.0 - x) + 1.0)


def _gelu(f: Function, x: Value) -> Value:
    # 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
    u = x * 0.7978845608028654 * f.fma(x * x, f.constant(x.type, 0.044715), f.constant(x.type, 1.0))
    return x * functions.sigmoid(f, u * 2.0)


ACTIVATIONS: dict[str, Activation] = {
    "silu_mul": _silu,
    "gelu_mul": _gelu,
    "sigmoid_mul": functions.sigmoid,
    "multiply": lambda f, x: x,
}


def write_elementwise(module: Module, isa: InstructionSet) -> None:
    """Write `rms_norm`, `layer_norm`, `rope_halves`, `rope_neighbors`, `add` and the activations."""
    operations = Operations(module, isa)

    def rows(f: Function) -> Value:
        return divided(f, f["n_rows"], ROWS_PER_TASK)

    def tokens(f: Function) -> Value:
        return f["n_tokens"]

    operations.add("rms_norm", NORM, [(rows, lambda f: by_rows(f, lambda row: _norm(f, isa, row, centers=False)))])
    operations.add("layer_norm", NORM, [(rows, lambda f: by_rows(f, lambda row: _norm(f, isa, row, centers=True)))])
    operations.add("rope_halves", ROPE, [(tokens, lambda f: _rope_token(f, isa, interleaved=False))])
    operations.add("rope_neighbors", ROPE, [(tokens, lambda f: _rope_token(f, isa, interleaved=True))])
    operations.add("add", ADD, [(rows, lambda f: by_rows(f, lambda row: _add(f, isa, row)))])
    for name, activation in ACTIVATIONS.items():

        def activate(f: Function, activation: Activation = activation) -> None:
            by_rows(f, lambda row: _activate(f, isa, row, activation))

        operations.add(name, ACTIVATION, [(rows, activate)])


def by_rows(f: Function, write_row: Callable[[Value], None]) -> None:
    """Write a task's loop over its rows."""
    first = f["task"] * ROWS_PER_TASK
    with f.loop(f.min(first + ROWS_PER_TASK, f["n_rows"]), first) as row:
        write_row(row)


def in_registers(f: Function, isa: InstructionSet, n: Value, write: Callable[[Value, int], None]) -> None:
    """Write a loop over n values, as many at once as a register holds, the rest one by one."""
    whole = n // isa.lanes * isa.lanes
    with f.loop(whole, step=isa.lanes) as i:
        write(i, isa.lanes)
    with f.loop(n, whole) as i:
        write(i, 1)


def _norm(f: Function, isa: InstructionSet, row: Value, *, centers: bool) -> None:
    """Normalize a row by its root mean square, after its mean is subtracted if it `centers`."""
    n = f["n"]
    x = f["x"] + (row // f["n_heads"] * f["x_bytes"] + row % f["n_heads"] * n * 4)
    weight = f["weight"] + row % f["n_weights"] * n * 4
    out = f["out"] + row * n * 4
    mean = _sum(f, isa, n, lambda i, lanes: f.load(vec(f32, lanes), x + i * 4)) / n.to(f32) if centers else None

    def load(i: Value, lanes: int) -> Value:
        value = f.load(vec(f32, lanes), x + i * 4)
        return value if mean is None else value - mean.splat(lanes)

    def square(i: Value, lanes: int) -> Value:
        value = load(i, lanes)
        return value * value

    factor = 1.0 / f.elementwise("sqrt", _sum(f, isa, n, square) / n.to(f32) + f["eps"])

    def scale(i: Value, lanes: int) -> None:
        f.store(load(i, lanes) * factor.splat(lanes) * f.load(vec(f32, lanes), weight + i * 4), out + i * 4)

    in_registers(f, isa, n, scale)


def _sum(f: Function, isa: InstructionSet, n: Value, value_at: Callable[[Value, int], Value]) -> Value:
    """Return the sum of n values."""
    totals = {lanes: f.variable(f.constant(vec(f32, lanes), 0.0)) for lanes in (isa.lanes, 1)}
    in_registers(f, isa, n, lambda i, lanes: totals[lanes].set(totals[lanes].get() + value_at(i, lanes)))
    return functions.sum_of_lanes(f, totals[isa.lanes].get()) + totals[1].get().lane(0)


def _add(f: Function, isa: InstructionSet, row: Value) -> None:
    x, y, out = f["x"] + row * f["x_bytes"], f["y"] + row * f["y_bytes"], f["out"] + row * f["n"] * 4

    def write(i: Value, lanes: int) -> None:
        type_ = vec(f32, lanes)
        f.store(f.fma(f.load(type_, y + i * 4), f["scale"].splat(lanes), f.load(type_, x + i * 4)), out + i * 4)

    in_registers(f, isa, f["n"], write)


def _activate(f: Function, isa: InstructionSet, row: Value, activation: Activation) -> None:
    gate, up = f["gate"] + row * f["gate_bytes"], f["up"] + row * f["up_bytes"]
    out = f["out"] + row * f["n"] * 4

    def write(i: Value, lanes: int) -> None:
        type_ = vec(f32, lanes)
        value = activation(f, f.load(type_, gate + i * 4)) * f.load(type_, up + i * 4)
        f.store(value, out + i * 4)

    in_registers(f, isa, f["n"], write)


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

        in_registers(f, isa, half, rotate)
        with f.loop(head_dim, half * 2) as i:
            f.store(f.load(f32, x + i * 4), out + i * 4)
