"""Reading the bricks of a layout in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.kernels.compiled.ir import Function, Type, Value, f16, i8, i16, i32, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.layout import BLOCK, GROUP, SUPERBLOCK, Layout

Halves = list[Value]  # the 16 rows of a group, in as many registers as they take


@dataclass(frozen=True)
class BrickReader:
    """Writes the instructions that take the bricks of a layout apart, for one instruction set.

    What comes out is ready for `InstructionSet.dot`: *steps* of 64 bytes, for each of the 16 rows four weights of
    8 bits or (`wide`) two of 16 bits. In wide steps the first and third of four inputs come before the second and
    fourth, since that is how bytes become int16 values without being moved.
    """

    layout: Layout
    isa: InstructionSet

    @property
    def wide(self) -> bool:
        """Whether steps hold int16 values."""
        return self.layout.is_signed and self.isa.signed_weights == "wide"

    @property
    def has_offset(self) -> bool:
        """Whether 128 is added to signed weights."""
        return self.layout.is_signed and self.isa.signed_weights == "offset"

    @property
    def step_type(self) -> Type:
        """The type of a register of a step."""
        return vec(i16, 2 * self.isa.lanes) if self.wide else self.isa.bytes

    @property
    def n_steps(self) -> int:
        """Steps in a block."""
        return BLOCK // 2 if self.wide else BLOCK // 4

    @property
    def n_halves(self) -> int:
        """Registers that 16 rows take."""
        return GROUP // self.isa.lanes

    @property
    def zero_point(self) -> int:
        """What must be subtracted from the weights in the steps."""
        return 128 if self.has_offset else self.layout.zero_point

    @property
    def has_minimum(self) -> bool:
        """Whether something is added to the products of weights and scales."""
        return self.layout.has_minimum or self.zero_point != 0

    def blocks(self, f: Function, group: Value, n_blocks: Value) -> Iterator[tuple[Value, Value, Value]]:
        """Write a loop over a group's blocks; yields the block's index, its brick and its head, once.

        What is written before the iterator is asked again is the loop's body.
        """
        layout = self.layout
        if not layout.has_head:
            with f.loop(n_blocks) as block:
                yield block, group + block * layout.brick_bytes, group
            return
        superblock_bytes = layout.head_bytes + SUPERBLOCK * layout.brick_bytes
        with f.loop(n_blocks // SUPERBLOCK) as superblock:
            head = group + superblock * superblock_bytes
            with f.loop(SUPERBLOCK) as block:
                brick = head + (block * layout.brick_bytes + layout.head_bytes)
                yield superblock * SUPERBLOCK + block, brick, head

    def sum_of_products(self, f: Function, steps: Iterable[tuple[Halves, list[Value]]], n_tokens: int) -> list[Halves]:
        """Return the sums of products of a run's weights and activations as int32, for each token and half.

        `steps` gives each step's weights, and for each token the four (or two) activations that meet them.
        """
        isa, wide = self.isa, self.wide
        most = 1 << 16 if wide else isa.most_dots(self.layout.value_bits)
        sums: list[list[Value | None]] = [[None] * self.n_halves for _ in range(n_tokens)]
        totals = [[isa.dot_accumulator(f, wide=wide)] * self.n_halves for _ in range(n_tokens)]
        for number, (weights, activations) in enumerate(steps):
            if number and number % most == 0:
                self._empty(f, totals, sums)
            for token, activation in enumerate(activations):
                for half, weight in enumerate(weights):
                    totals[token][half] = isa.dot(f, totals[token][half], weight, activation, wide=wide)
        self._empty(f, totals, sums)
        return [[total for total in line if total is not None] for line in sums]

    def _empty(self, f: Function, totals: list[Halves], sums: list[list[Value | None]]) -> None:
        """Add accumulators to the sums, and begin anew with them."""
        for line, into in zip(totals, sums, strict=True):
            for half, total in enumerate(line):
                added = self.isa.dot_sum(f, total, wide=self.wide)
                before = into[half]
                into[half] = added if before is None else before + added
                line[half] = self.isa.dot_accumulator(f, wide=self.wide)

    def steps(self, f: Function, brick: Value, run: int) -> Iterator[tuple[int, Halves]]:
        """Yield the number of each step of a run, and its registers."""
        layout = self.layout
        low = _Plane(self, f, brick, layout.low_bits)
        high = _Plane(self, f, brick + layout.low_bytes, layout.high_bits) if layout.high_bits else None
        steps_per_run = layout.run // 4
        for step in range(run * steps_per_run, (run + 1) * steps_per_run):
            values = low.values(step, at=0)
            if high is not None:
                above = high.values(step, at=layout.low_bits)
                values = [value | more for value, more in zip(values, above, strict=True)]
            weights = [self._weights(f, value) for value in values]
            if not self.wide:
                yield step, weights
                continue
            pairs = [weight.bits(vec(i16, 2 * self.isa.lanes)) for weight in weights]
            yield 2 * step, [(pair << 8) >> 8 for pair in pairs]
            yield 2 * step + 1, [pair >> 8 for pair in pairs]

    def _weights(self, f: Function, values: Value) -> Value:
        if self.layout.table is not None:
            values = self.isa.look_up(f, self.layout.table, values)
        return values ^ -128 if self.has_offset else values

    def scales(self, f: Function, brick: Value, head: Value, run: int) -> tuple[Halves, Halves]:
        """Return a run's scales and minima as float32; no minima where there are none."""
        scales, minima = [], []
        for half in range(self.n_halves):
            scale, minimum = self._stored_scales(f, brick, run, half)
            if self.layout.has_head:
                factors = [
                    f.load(vec(f16, self.isa.lanes), head + 2 * (GROUP * i + self.isa.lanes * half)).to(self.isa.f32s)
                    for i in range(2 if self.layout.has_minimum else 1)
                ]
                scale = scale * factors[0]
                if minimum is not None:
                    minimum = 0.0 - minimum * factors[1]
            if self.zero_point:
                below = scale * -float(self.zero_point)
                minimum = below if minimum is None else minimum + below
            scales.append(scale)
            if minimum is not None:
                minima.append(minimum)
        return scales, minima

    def _stored_scales(self, f: Function, brick: Value, run: int, half: int) -> tuple[Value, Value | None]:
        layout, lanes, f32s = self.layout, self.isa.lanes, self.isa.f32s
        place = layout.value_bytes + (GROUP * run + lanes * half) * (2 if layout.scale == "f16" else 1)

        def load(offset: int) -> Value:
            if layout.scale == "f16":
                return f.load(vec(f16, lanes), brick + offset).to(f32s)
            return f.load(vec(i8, lanes), brick + offset).to(vec(i32, lanes)).to(f32s)

        match layout.scale:
            case "u4":
                both = f.load(vec(i8, lanes), brick + place).unsigned_to(vec(i32, lanes))
                return (both & 15).to(f32s), both.unsigned_shift(4).to(f32s)
            case "e8m0":
                exponent = f.load(vec(i8, lanes), brick + place).unsigned_to(vec(i32, lanes))
                # 2 ** (e - 128), below the normal numbers for the two smallest
                tiny = f.constant(vec(i32, lanes), 1 << 21) << exponent
                return f.select(exponent < 2, tiny, (exponent - 1) << 23).bits(f32s), None
            case _:
                return load(place), load(place + layout.scale_bytes) if layout.has_minimum else None


class _Plane:
    """Writes the instructions that unpack a plane, step by step."""

    def __init__(self, reader: BrickReader, f: Function, address: Value, bits: int) -> None:
        self._reader = reader
        self._f = f
        self._address = address
        self._bits = bits
        self._unit = -1  # of 64 bytes, that the registers hold
        self._registers: Halves = []

    def values(self, step: int, *, at: int) -> Halves:
        """Return a step's values, shifted to the bits from `at` on."""
        unit, part = divmod(step, 8 // self._bits)
        if unit != self._unit:
            self._unit, self._registers = unit, self._load(unit)
        if self._bits == 8:
            return self._registers
        begin = self._bits * part
        mask = ((1 << self._bits) - 1) << at
        if at == 0:
            shifted = [value.unsigned_shift(begin) if begin else value for value in self._registers]
            return shifted if begin + self._bits == 8 else [value & mask for value in shifted]
        # bytes can't be shifted by x86; what comes in from their neighbors does not reach the bits that are taken
        pairs = vec(i16, 2 * self._reader.isa.lanes)
        words = [value.bits(pairs) for value in self._registers]
        moved = [word << (at - begin) if begin < at else word.unsigned_shift(begin - at) for word in words]
        return [word.bits(self._reader.isa.bytes) & mask for word in moved]

    def _load(self, unit: int) -> Halves:
        reader = self._reader
        step = 4 * reader.isa.lanes
        return [
            self._f.load(reader.isa.bytes, self._address + (64 * unit + step * half)) for half in range(reader.n_halves)
        ]
