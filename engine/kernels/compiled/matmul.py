"""Products of activations and quantized weights.

One token (decode) streams the bricks through registers: the machine's memory is the limit. Several tokens (prefill)
unpack a group of rows into a *strip* once, and multiply it with tiles of tokens: the arithmetic is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir as llvm_ir

from engine.kernels.compiled.activations import TOKENS_PER_TASK, Activations, write_quantize
from engine.kernels.compiled.bricks import BrickReader, Halves
from engine.kernels.compiled.ir import Function, Module, Value, f32, i8, i16, i32, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Operations, Use, divided
from engine.kernels.layout import BLOCK, GROUP, Layout

TOKENS_PER_CHUNK = 128  # tokens that a strip meets before it is given up: their activations stay in the L2 cache
PARAMETERS = {
    "part": ptr,  # see PART
    "x": Array(Use.READ, "n_tokens ."),  # (n_tokens, n_in)
    "out": Array(Use.WRITTEN, "n_tokens .", step="out_bytes"),  # (n_tokens, all rows of the matrix)
    "n_tokens": i64,
    "out_offset": i64,  # bytes of the rows before this part's
    "out_bytes": i64,  # from one token to the next
    "activations": Array(Use.LASTING, dtype=np.uint8),  # see activations.activation_nbytes; unused for floats
    "strips": Array(Use.LASTING, dtype=np.uint8),  # one for each thread
}
TAKE_ROWS = PARAMETERS | {"x": Array(Use.READ, "n_tokens", np.int32)}  # the numbers of rows: a token for each
SIGNATURES = {"matvec": PARAMETERS, "matmul": PARAMETERS, "take_rows": TAKE_ROWS}
PART = ("weight", "n_in", "n_out", "group_bytes", "strip_bytes")
"""What is the same for every product with a part of a matrix: int64, in memory that `part` points to."""
_TASK_BYTES = 1 << 14  # of weights, that one task of a matrix-vector product reads
_AHEAD = 2048  # bytes: how far before they are used weights are asked for, beyond the page where processors stop


def complete(f: Function) -> dict[str, Value]:
    """Write the arguments that follow from the parameters."""
    loaded = {name: f.load(ptr if name == "weight" else i64, f["part"] + 8 * i, align=8) for i, name in enumerate(PART)}
    per_task = f.constant(i64, _TASK_BYTES) // loaded["group_bytes"]
    return {
        **loaded,
        "out": f["out"] + f["out_offset"],
        "activations": f["activations"],
        "n_groups": divided(f, loaded["n_out"], GROUP),
        "groups_per_task": f.select(per_task < 1, f.constant(i64, 1), per_task),
    }


def matvec_tasks(f: Function) -> Value:
    """Write the number of tasks for one token."""
    return divided(f, f["n_groups"], f["groups_per_task"])


def matmul_tasks(f: Function) -> Value:
    """Write the number of tasks for several tokens."""
    return f["n_groups"] * divided(f, f["n_tokens"], TOKENS_PER_CHUNK)


def strip_nbytes(n_in: int, *, wide: bool, n_runs: int) -> int:
    """Return the bytes of a strip: the steps, then the scales and the minima in float32."""
    return n_in // BLOCK * GROUP * (BLOCK * (2 if wide else 1) + 8 * n_runs)


def write_matmul(module: Module, isa: InstructionSet, layout: Layout, *, n_digits: int) -> None:
    """Write `matvec` (one token), `matmul` (several tokens) and `take_rows` for a layout.

    With two digits, activations are rounded twice: what the first rounding lost meets the weights as well.
    """
    reader = BrickReader(layout, isa)
    operations = Operations(module, isa)
    # half of the registers for sums; the other half is for totals, weights and activations
    most_tokens = min(8, isa.n_registers // 2 // reader.n_halves) // n_digits
    tiles = {n: _write_tile(module, reader, n, n_digits) for n in (most_tokens, 1)}
    unpack = _write_unpack(module, reader)

    def quantize(f: Function) -> None:
        target = Activations.at(f["activations"], reader, f["n_tokens"] * n_digits, f["n_in"])
        first = f["task"] * TOKENS_PER_TASK
        with f.loop(f.min(first + TOKENS_PER_TASK, f["n_tokens"]), first) as token:
            digits = [target.token(token * n_digits + digit) for digit in range(n_digits)]
            write_quantize(f, f["x"] + token * f["n_in"] * 4, digits)

    def matvec(f: Function) -> None:
        first = f["task"] * f["groups_per_task"]
        x = Activations.at(f["activations"], reader, f["n_tokens"] * n_digits, f["n_in"])
        digits = [x.token(f.constant(i64, digit)) for digit in range(n_digits)]
        with f.loop(f.min(first + f["groups_per_task"], f["n_groups"]), first) as group:
            totals = _write_matvec(f, reader, f["weight"] + group * f["group_bytes"], digits)
            row = group * GROUP
            _write_store(f, reader, totals, f["out"] + row * 4, f["n_out"] - row)

    def matmul(f: Function) -> None:
        group, first = f["task"] % f["n_groups"], f["task"] // f["n_groups"] * TOKENS_PER_CHUNK
        stop = f.min(first + TOKENS_PER_CHUNK, f["n_tokens"])
        strip = f["strips"] + f["thread"] * f["strip_bytes"]
        n_blocks = f["n_in"] // BLOCK
        f.call(unpack, f["weight"] + group * f["group_bytes"], strip, n_blocks)
        x = Activations.at(f["activations"], reader, f["n_tokens"] * n_digits, f["n_in"])
        row = group * GROUP
        at = f.variable(first)
        for n, tile in tiles.items():
            start = at.get()
            with f.loop(stop - (n - 1), start, n) as token:
                of = x.token(token * n_digits)
                out = f["out"] + (token * f["out_bytes"] + row * 4)
                f.call(tile, strip, of.values, of.scales, of.sums, out, f["n_in"], f["out_bytes"], f["n_out"] - row)
            at.set(start + (stop - start) // n * n)

    def take_row(f: Function) -> None:
        """Write a row of the matrix, which number `x` gives, as float32."""
        row = f.load(i32, f["x"] + f["task"] * 4).to(i64)
        strip = f["strips"] + f["thread"] * f["strip_bytes"]
        n_blocks = f["n_in"] // BLOCK
        f.call(unpack, f["weight"] + row // GROUP * f["group_bytes"], strip, n_blocks)
        _write_row(f, Strip(reader, strip, n_blocks), row % GROUP, f["out"] + f["task"] * f["out_bytes"])

    quantizing = (lambda f: divided(f, f["n_tokens"], TOKENS_PER_TASK), quantize)
    operations.add("matvec", PARAMETERS, [quantizing, (matvec_tasks, matvec)], complete)
    operations.add("matmul", PARAMETERS, [quantizing, (matmul_tasks, matmul)], complete)
    operations.add("take_rows", TAKE_ROWS, [(lambda f: f["n_tokens"], take_row)], complete)


@dataclass(frozen=True)
class Strip:
    """A group of rows, unpacked: the steps of all blocks, the scales, the minima."""

    reader: BrickReader
    base: Value
    n_blocks: Value

    @property
    def block_bytes(self) -> int:
        """Bytes of the steps of a block."""
        return 64 * self.reader.n_steps

    def steps(self, block: Value) -> Value:
        """Return the address of a block's steps."""
        return self.base + block * self.block_bytes

    def scales(self, block: Value) -> Value:
        """Return the address of a block's scales, (n_runs, 16) float32."""
        return self.base + self.n_blocks * self.block_bytes + block * (4 * GROUP * self.reader.layout.n_runs)

    def minima(self, block: Value) -> Value:
        """Return the address of a block's minima, laid out as the scales."""
        return self.scales(block + self.n_blocks)


def _write_unpack(module: Module, reader: BrickReader) -> llvm_ir.Function:
    f = module.function("unpack", {"group": ptr, "strip": ptr, "n_blocks": i64})
    strip = Strip(reader, f["strip"], f["n_blocks"])
    register_bytes = 4 * reader.isa.lanes
    for block, brick, head in reader.blocks(f, f["group"], f["n_blocks"]):
        for run in range(reader.layout.n_runs):
            for step, registers in reader.steps(f, brick, run):
                for half, register in enumerate(registers):
                    f.store(register, strip.steps(block) + (64 * step + register_bytes * half))
            scales, minima = reader.scales(f, brick, head, run)
            for half, scale in enumerate(scales):
                f.store(scale, strip.scales(block) + (4 * GROUP * run + register_bytes * half))
            for half, minimum in enumerate(minima):
                f.store(minimum, strip.minima(block) + (4 * GROUP * run + register_bytes * half))
    return f.finish()


def _write_tile(module: Module, reader: BrickReader, n_tokens: int, n_digits: int) -> llvm_ir.Function:
    """Write the product of a strip and a few tokens, all sums in registers."""
    isa, layout = reader.isa, reader.layout
    parameters = {"strip": ptr, "values": ptr, "scales": ptr, "sums": ptr, "out": ptr}
    counts = {"n_in": i64, "out_bytes": i64, "n_rows": i64}
    f = module.function(f"tile_{n_tokens}", parameters | counts)
    f.function.attributes.add("noinline")
    n_blocks = f["n_in"] // BLOCK
    strip = Strip(reader, f["strip"], n_blocks)
    x = Activations(reader, f["values"], f["scales"], f["sums"], f["n_in"])
    tokens = [x.token(f.constant(i64, t)) for t in range(n_tokens * n_digits)]
    value_bytes, scale_bytes, sum_bytes = x.block_bytes()
    register_bytes, halves = 4 * isa.lanes, range(reader.n_halves)
    zero = f.constant(isa.f32s, 0.0)
    totals = [[f.variable(zero) for _ in halves] for _ in range(n_tokens)]  # of all digits
    steps_per_run = reader.n_steps // layout.n_runs
    with f.loop(n_blocks) as block:
        values = [token.values + block * value_bytes for token in tokens]
        for run in range(layout.n_runs):
            steps = range(run * steps_per_run, (run + 1) * steps_per_run)
            products = (
                (
                    [f.load(reader.step_type, strip.steps(block) + (64 * step + register_bytes * h)) for h in halves],
                    [_broadcast(f, reader, value + 4 * step) for value in values],
                )
                for step in steps
            )
            sums = reader.sum_of_products(f, products, len(tokens))
            place = 4 * GROUP * run
            for h in halves:
                weight_scale = f.load(isa.f32s, strip.scales(block) + (place + register_bytes * h))
                if reader.has_minimum:
                    minimum = f.load(isa.f32s, strip.minima(block) + (place + register_bytes * h))
                for t, token in enumerate(tokens):
                    scale = f.load(f32, token.scales + block * scale_bytes).splat(isa.lanes)
                    dot = sums[t][h].to(isa.f32s) * scale
                    total = f.fma(dot, weight_scale, totals[t // n_digits][h].get())
                    if reader.has_minimum:
                        added = f.load(f32, token.sums + (block * sum_bytes + 4 * run)).splat(isa.lanes)
                        total = f.fma(minimum, added, total)
                    totals[t // n_digits][h].set(total)
    for t in range(n_tokens):
        _write_store(f, reader, [total.get() for total in totals[t]], f["out"] + f["out_bytes"] * t, f["n_rows"])
    return f.finish()


def _write_matvec(f: Function, reader: BrickReader, group: Value, digits: Sequence[Activations]) -> Halves:
    """Write the product of one group of rows and one token."""
    isa, layout = reader.isa, reader.layout
    value_bytes, scale_bytes, sum_bytes = digits[0].block_bytes()
    totals = [f.variable(f.constant(isa.f32s, 0.0)) for _ in range(reader.n_halves)]
    for block, brick, head in reader.blocks(f, group, digits[0].n_in // BLOCK):
        for line in range(0, layout.brick_bytes, 64):
            f.prefetch(brick + (_AHEAD + line))
        values = [digit.values + block * value_bytes for digit in digits]
        x_scales = [f.load(f32, digit.scales + block * scale_bytes).splat(isa.lanes) for digit in digits]
        for run in range(layout.n_runs):
            products = (
                (weights, [_broadcast(f, reader, value + 4 * step) for value in values])
                for step, weights in reader.steps(f, brick, run)
            )
            sums = reader.sum_of_products(f, products, len(digits))
            scales, minima = reader.scales(f, brick, head, run)
            for h, total in enumerate(totals):
                value = total.get()
                for i, digit in enumerate(digits):
                    dot = sums[i][h].to(isa.f32s) * x_scales[i]
                    value = f.fma(dot, scales[h], value)
                    if minima:
                        added = f.load(f32, digit.sums + (block * sum_bytes + 4 * run)).splat(isa.lanes)
                        value = f.fma(minima[h], added, value)
                total.set(value)
    return [total.get() for total in totals]


def _broadcast(f: Function, reader: BrickReader, activations: Value) -> Value:
    """Return a register full of four activations (or two of 16 bits)."""
    return f.load(i32, activations).splat(reader.isa.lanes).bits(reader.step_type)


def _write_store(f: Function, reader: BrickReader, registers: Halves, out: Value, n_rows: Value) -> None:
    """Store 16 results, or as many as there are rows in the last group."""
    register_bytes = 4 * reader.isa.lanes
    with f.either(n_rows >= GROUP) as (whole, part):
        with whole:
            for half, register in enumerate(registers):
                f.store(register, out + register_bytes * half)
        with part:
            spare = f.buffer(4 * GROUP)
            for half, register in enumerate(registers):
                f.store(register, spare + register_bytes * half)
            with f.loop(n_rows) as row:
                f.store(f.load(f32, spare + row * 4), out + row * 4)


def _write_row(f: Function, strip: Strip, row: Value, out: Value) -> None:
    """Write the weights of one row of a strip as float32."""
    reader = strip.reader
    element, width = (i16, 2) if reader.wide else (i8, 1)
    per_step = 4 // width
    with f.loop(strip.n_blocks) as block:
        for run in range(reader.layout.n_runs):
            place = row * 4 + 4 * GROUP * run
            scale = f.load(f32, strip.scales(block) + place)
            minimum = f.load(f32, strip.minima(block) + place) if reader.has_minimum else None
            n_steps = reader.n_steps // reader.layout.n_runs
            for step in range(run * n_steps, (run + 1) * n_steps):
                for i in range(per_step):
                    raw = f.load(element, strip.steps(block) + (row * 4 + (64 * step + width * i)))
                    value = (raw.unsigned_to(i32) if reader.has_offset else raw.to(i32)).to(f32)
                    weight = f.fma(value, scale, minimum) if minimum is not None else value * scale
                    column = 4 * (step // 2) + step % 2 + 2 * i if reader.wide else 4 * step + i
                    f.store(weight, out + (block * (4 * BLOCK) + 4 * column))
