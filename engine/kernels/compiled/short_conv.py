"""Causal convolutions of each channel over a few tokens.

A task takes a stripe of channels through all tokens. What the file and the memory keep by channel, weights and inputs
before, is first laid out by token, so that the lanes of registers run along the channels.
"""

from __future__ import annotations

from functools import partial

from engine.kernels.compiled import functions
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Parameters, Use, divided

WIDTHS = (3, 4)  # tokens that a convolution sees
CHANNELS = 8  # their number is a multiple of it
_STRIPE = 128  # channels of a task
_LINE = 4 * _STRIPE
_TYPE = vec(f32, CHANNELS)


def parameters(width: int) -> Parameters:
    """Return the parameters of the operations of a width."""
    return {
        "x": Array(Use.READ, "n_tokens n_channel", step="x_bytes"),
        "r": Array(Use.STATE, f"n_channel {width - 1}"),
        "weight": Array(Use.READ, f"n_channel {width}"),
        "bias": Array(Use.READ, "n_channel", given="has_bias"),
        "out": Array(Use.WRITTEN, "n_tokens n_channel"),
        "after": Array(Use.NEXT_STATE, f"n_channel {width - 1}"),
        "n_tokens": i64,
        "n_channel": i64,
        "x_bytes": i64,
        "has_bias": i64,
    }


def name_of(width: int, *, silu: bool) -> str:
    """Return the name of an operation."""
    return f"short_conv_{width}{'_silu' if silu else ''}"


def write_short_conv(module: Module, isa: InstructionSet) -> None:
    """Write an operation for each width, with and without silu."""
    operations = Operations(module, isa)
    for width in WIDTHS:
        for silu in (False, True):
            task = partial(_write_task, width=width, silu=silu)
            operations.add(
                name_of(width, silu=silu), parameters(width), [(lambda f: divided(f, f["n_channel"], _STRIPE), task)]
            )


def _write_task(f: Function, *, width: int, silu: bool) -> None:
    first = f["task"] * _STRIPE
    n = f.min(f["n_channel"] - first, _STRIPE)
    x, out = f["x"] + first * 4, f["out"] + first * 4
    r, after = (f[name] + first * (4 * (width - 1)) for name in ("r", "after"))
    before, weight, bias = f.buffer(_LINE * (width - 1)), f.buffer(_LINE * width), f.buffer(_LINE)
    with f.loop(n, step=CHANNELS) as i:
        for source, target, size in ((r, before, width - 1), (f["weight"] + first * (4 * width), weight, width)):
            by_channel = f.load(vec(f32, CHANNELS * size), source + i * (4 * size))
            for j in range(size):
                f.store(by_channel.shuffle(range(j, CHANNELS * size, size)), target + (i * 4 + _LINE * j))
        f.store(f.constant(_TYPE, 0.0), bias + i * 4)
        with f.when(f["has_bias"].equals(1)):
            f.store(f.load(_TYPE, f["bias"] + (first + i) * 4), bias + i * 4)

    def window(token: Value, size: int) -> list[Value]:
        """Return where the inputs of a token and those before it are."""
        places = []
        for j in range(size):
            index = token + (j - width + 1)
            places.append(f.select(index < 0, before + (token + j) * _LINE, x + index * f["x_bytes"]))
        return places

    with f.loop(f["n_tokens"]) as token:
        places = window(token, width)
        with f.loop(n, step=CHANNELS) as i:
            total = f.load(_TYPE, bias + i * 4)
            for j, place in enumerate(places):
                total = f.fma(f.load(_TYPE, place + i * 4), f.load(_TYPE, weight + (i * 4 + _LINE * j)), total)
            if silu:
                total = total * functions.sigmoid(f, total)
            f.store(total, out + (token * f["n_channel"] + i) * 4)
    places = window(f["n_tokens"], width - 1)
    with f.loop(n) as i:
        for j, place in enumerate(places):
            f.store(f.load(f32, place + i * 4), after + (i * (4 * (width - 1)) + 4 * j))
