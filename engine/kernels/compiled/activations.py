"""Activations as small integers, for products with quantized weights.

A block of 32 values has one scale, the largest magnitude divided by the largest integer, as in llama.cpp's Q8_0; but
in float32, and with the sums of the integers beside it, which the minima of the weights are multiplied with. Where
that is too coarse, what was rounded off makes a second *digit* in the same form, of a token of its own as it were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kernels.compiled.bricks import BrickReader
from engine.kernels.compiled.ir import Function, Value, f32, i8, i16, i32, vec
from engine.kernels.layout import BLOCK

TOKENS_PER_TASK = 4


@dataclass(frozen=True)
class Activations:
    """Where the integers (n_tokens, n_in), the scales (n_tokens, n_blocks) and the sums (…, n_runs) begin."""

    reader: BrickReader
    values: Value
    scales: Value
    sums: Value
    n_in: Value

    @classmethod
    def at(cls, scratch: Value, reader: BrickReader, n_tokens: Value, n_in: Value) -> Activations:
        """Lay them out one behind the other."""
        width = 2 if reader.wide else 1
        scales = scratch + n_tokens * n_in * width
        sums = scales + n_tokens * (n_in // BLOCK) * 4
        return cls(reader, scratch, scales, sums, n_in)

    def token(self, token: Value) -> Activations:
        """Return where a token's begin."""
        width = 2 if self.reader.wide else 1
        n_blocks = self.n_in // BLOCK
        return Activations(
            self.reader,
            self.values + token * self.n_in * width,
            self.scales + token * n_blocks * 4,
            self.sums + token * n_blocks * (4 * self.reader.layout.n_runs),
            self.n_in,
        )

    def block_bytes(self) -> tuple[int, int, int]:
        """Return the bytes of a block's integers, scale and sums."""
        return 4 * self.reader.n_steps, 4, 4 * self.reader.layout.n_runs


def activation_nbytes(n_tokens: int, n_in: int, *, wide: bool, n_runs: int) -> int:
    """Return the size of the scratch memory that activations take."""
    return n_tokens * (n_in * (2 if wide else 1) + n_in // BLOCK * 4 * (1 + n_runs))


def write_quantize(f: Function, x: Value, targets: Sequence[Activations]) -> None:
    """Write the instructions that quantize one token's values: what one target leaves goes to the next one."""
    with f.loop(targets[0].n_in // BLOCK) as block:
        _write_block(f, x + block * (4 * BLOCK), block, targets)


def _write_block(f: Function, x: Value, block: Value, targets: Sequence[Activations]) -> None:
    reader = targets[0].reader
    lanes, isa = reader.isa.lanes, reader.isa
    limit = 32767 if reader.wide else 127
    registers = [f.load(isa.f32s, x + 4 * lanes * i) for i in range(BLOCK // lanes)]
    # magnitudes compare as integers do, and integers have a maximum that needs no thought for NaN
    largest = registers[0].bits(isa.i32s) & 0x7FFFFFFF
    for register in registers[1:]:
        largest = f.elementwise("smax", largest, register.bits(isa.i32s) & 0x7FFFFFFF)
    top = f.intrinsic(f"llvm.vector.reduce.smax.v{lanes}i32", i32, largest).bits(f32)
    inverse = f.select(top > 0.0, limit / top, f.constant(f32, 0.0)).splat(lanes)
    scale = top * (1.0 / limit)
    scaled = [register * inverse for register in registers]
    for target in targets:
        rounded = [f.elementwise("rint", value) for value in scaled]
        _store_block(f, [value.to(isa.i32s) for value in rounded], scale, block, target)
        # what was lost lies between -1/2 and 1/2
        scaled = [(value - whole) * (2.0 * limit) for value, whole in zip(scaled, rounded, strict=True)]
        scale = scale * (0.5 / limit)


def _store_block(f: Function, integers: Sequence[Value], scale: Value, block: Value, target: Activations) -> None:
    reader = target.reader
    lanes, n_runs = reader.isa.lanes, reader.layout.n_runs
    value_bytes, scale_bytes, sum_bytes = target.block_bytes()
    f.store(scale, target.scales + block * scale_bytes)
    for i, integer in enumerate(integers):
        narrow = integer.to(vec(i16 if reader.wide else i8, lanes))
        if reader.wide:
            narrow = narrow.shuffle([4 * j + k for j in range(lanes // 4) for k in (0, 2, 1, 3)])
        f.store(narrow, target.values + (block * value_bytes + value_bytes // len(integers) * i))
    per_run = len(integers) // n_runs
    for run in range(n_runs):
        total = integers[run * per_run]
        for integer in integers[run * per_run + 1 : (run + 1) * per_run]:
            total = total + integer
        added = f.intrinsic(f"llvm.vector.reduce.add.v{lanes}i32", i32, total)
        f.store(added.to(f32) * scale, target.sums + (block * sum_bytes + 4 * run))
