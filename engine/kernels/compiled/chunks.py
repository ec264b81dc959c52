"""What recurrences with one decay per head have in common (arXiv 2405.21060, 2412.06464).

In prefill a head goes through the tokens in chunks, within which the recurrence becomes matrix products. Its state is
turned around for that, such that the lanes of registers run along the values of a head everywhere. A single token
instead streams the state through registers as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as llvm_ir

from engine.kernels.compiled import functions
from engine.kernels.compiled.ir import Function, Module, Value, f32, i64, ptr, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.product import call_product, write_product

CHUNK = 64  # tokens; a multiple of a product's width
ROWS = 8  # of a state, that a single token updates at once; each size of a state is a multiple of it
_REGISTERS = 2  # that a product is wide
_TYPE = vec(f32, ROWS)


def product_width(isa: InstructionSet) -> int:
    """Return what the number of values of a head must be a multiple of."""
    return _REGISTERS * isa.lanes


@dataclass(frozen=True)
class Rows:
    """A float32 matrix in memory."""

    base: Value
    row_bytes: Value | int
    column_bytes: Value | int = 4

    def at(self, row: Value) -> Value:
        """Return the address of a row."""
        return self.base + row * self.row_bytes

    def start(self, row: Value) -> Rows:
        """Return the rows from this one on."""
        return Rows(self.at(row), self.row_bytes, self.column_bytes)

    @property
    def transposed(self) -> Rows:
        """The same with rows and columns exchanged."""
        return Rows(self.base, self.column_bytes, self.row_bytes)


@dataclass(frozen=True)
class Decays:
    """Of a chunk's tokens, in float32: the decay since its start, its logarithm, and the decay until its end."""

    total: Value  # the logarithms
    since_start: Value
    until_end: Value

    @classmethod
    def write(cls, f: Function, isa: InstructionSet, logarithms: Value, n: Value) -> Decays:
        """Write them for n logarithms of the decays of single tokens, in memory for CHUNK of them."""
        total, since_start, until_end = (f.buffer(4 * CHUNK) for _ in range(3))
        last = f.variable(f.constant(f32, 0.0))
        with f.loop(n) as i:
            last.set(last.get() + f.load(f32, logarithms + i * 4))
            f.store(last.get(), total + i * 4)
        end = last.get().splat(isa.lanes)
        with f.loop(n, step=isa.lanes) as i:
            value = f.load(isa.f32s, total + i * 4)
            f.store(functions.exp(f, value), since_start + i * 4)
            f.store(functions.exp(f, end - value), until_end + i * 4)
        return cls(total, since_start, until_end)


@dataclass(frozen=True)
class Chunks:
    """Writes steps of a chunk."""

    isa: InstructionSet
    assign: llvm_ir.Function
    add: llvm_ir.Function

    @classmethod
    def write(cls, module: Module, isa: InstructionSet) -> Chunks:
        """Write the functions that the steps call."""
        assign, add = (write_product(module, isa, _REGISTERS, adds=adds) for adds in (False, True))
        return cls(isa, assign, add)

    def multiply(
        self,
        f: Function,
        a: Rows,
        b: Rows,
        out: Rows,
        *,
        n_rows: Value,
        n_k: Value,
        n_columns: Value,
        adds: bool = False,
    ) -> None:
        """Write out = a b, or (`adds`) out += a b; n_columns is rounded up to the width of a product."""
        with f.loop(n_columns, step=product_width(self.isa)) as column:
            call_product(
                f, self.add if adds else self.assign, a.base, b.base + column * 4, out.base + column * 4,
                n_rows=n_rows, n_k=n_k,
                a_row_bytes=a.row_bytes, a_k_bytes=a.column_bytes, b_bytes=b.row_bytes, out_bytes=out.row_bytes,
            )  # fmt: skip

    def multiply_pairs(self, f: Function, a: Rows, b: Rows, out: Rows, *, n: Value, n_k: Value) -> None:
        """Write out = a b for pairs of n tokens, at least where the second is not after the first."""
        step = product_width(self.isa)
        with f.loop(n, step=step) as row:
            n_rows = f.min(n - row, step)
            self.multiply(f, a.start(row), b, out.start(row), n_rows=n_rows, n_k=n_k, n_columns=row + step)

    def add_earlier(self, f: Function, a: Rows, b: Rows, out: Rows, *, n: Value, n_columns: Value) -> None:
        """Write out += a b for a (n, n) that is zero where the second token is after the first."""
        step = product_width(self.isa)
        with f.loop(n, step=step) as row:
            n_rows = f.min(n - row, step)
            self.multiply(
                f, a.start(row), b, out.start(row), n_rows=n_rows, n_k=row + n_rows, n_columns=n_columns, adds=True
            )

    def decay_pairs(self, f: Function, pairs: Rows, out: Rows, decays: Decays, n: Value) -> None:
        """Write out = pairs * the decay from the second to the first of n tokens, 0 where the second is after it."""
        isa = self.isa
        numbers = f.lanes(i64, range(isa.lanes))
        with f.loop(n) as row:
            total = f.load(f32, decays.total + row * 4).splat(isa.lanes)
            # up to where `add_earlier` reads
            stop = (row // product_width(isa) + 1) * product_width(isa)
            with f.loop(stop, step=isa.lanes) as column:
                decay = functions.exp(f, total - f.load(isa.f32s, decays.total + column * 4))
                value = f.load(isa.f32s, pairs.at(row) + column * 4) * decay
                is_earlier = (numbers + column.splat(isa.lanes)) <= row.splat(isa.lanes)
                f.store(f.select(is_earlier, value, f.constant(isa.f32s, 0.0)), out.at(row) + column * 4)

    def scale_row(self, f: Function, row: Value, factor: Value, n: Value, *, out: Value | None = None) -> None:
        """Write row *= factor, or out = row * factor, for n values."""
        with f.loop(n, step=ROWS) as i:
            f.store(f.load(_TYPE, row + i * 4) * factor.splat(ROWS), (out or row) + i * 4)

    def scale_rows(self, f: Function, rows: Rows, factors: Value, *, n_rows: Value, n: Value) -> None:
        """Write the multiplication of each row with a factor of its own."""
        with f.loop(n_rows) as row:
            self.scale_row(f, rows.at(row), f.load(f32, factors + row * 4), n)


def copy_column(f: Function, source: Value, target: Value, *, source_bytes: Value, n: Value) -> None:
    """Write n values, which lie source_bytes apart, side by side."""
    with f.loop(n) as i:
        f.store(f.load(f32, source + i * source_bytes), target + i * 4)


def copy_transposed(f: Function, source: Rows, target: Rows, *, n_rows: Value, n_columns: Value) -> None:
    """Write target = source transposed, for source (n_rows, n_columns)."""
    whole = n_rows // ROWS * ROWS
    with f.loop(n_columns, step=ROWS) as column:
        block = Rows(source.base + column * 4, source.row_bytes)
        with f.loop(whole, step=ROWS) as row:
            values = [f.load(_TYPE, block.at(row + i)) for i in range(ROWS)]
            for i, value in enumerate(_transposed(values)):
                f.store(value, target.at(column + i) + row * 4)
        with f.loop(n_rows, whole) as row:
            for i in range(ROWS):
                f.store(f.load(f32, block.at(row) + 4 * i), target.at(column + i) + row * 4)


def _transposed(vectors: list[Value]) -> list[Value]:
    """Return as many vectors as each has lanes, transposed: by shuffling them perfectly until all is in place."""
    n = half = len(vectors)
    zipped = [lane for i in range(n) for lane in (i, n + i)]
    while half > 1:
        half //= 2
        pairs = zip(vectors[: n // 2], vectors[n // 2 :], strict=True)
        vectors = [a.shuffle(part, b) for a, b in pairs for part in (zipped[:n], zipped[n:])]
    return vectors


def write_multiply_rows(module: Module) -> llvm_ir.Function:
    """Write out = s k for ROWS rows of a state."""
    f = module.function("multiply_rows", {"s": ptr, "n": i64, "k": ptr, "out": ptr})
    f.function.attributes.add("noinline")
    sums = [f.variable(f.constant(_TYPE, 0.0)) for _ in range(ROWS)]
    with f.loop(f["n"], step=ROWS) as i:
        k = f.load(_TYPE, f["k"] + i * 4)
        for j, total in enumerate(sums):
            total.set(f.fma(f.load(_TYPE, f["s"] + (f["n"] * (4 * j) + i * 4)), k, total.get()))
    f.store(functions.sums_of_lanes([total.get() for total in sums]), f["out"])
    return f.finish()


def write_update_rows(module: Module) -> llvm_ir.Function:
    """Write after = decay * s + updates k^T for ROWS rows of a state, and out = after q."""
    f = module.function(
        "update_rows",
        {"s": ptr, "after": ptr, "n": i64, "decay": f32, "updates": ptr, "k": ptr, "q": ptr, "out": ptr},
    )
    f.function.attributes.add("noinline")
    decay = f["decay"].splat(ROWS)
    updates = [f.load(f32, f["updates"] + 4 * j).splat(ROWS) for j in range(ROWS)]
    sums = [f.variable(f.constant(_TYPE, 0.0)) for _ in range(ROWS)]
    with f.loop(f["n"], step=ROWS) as i:
        # the next rows: eight lines at once are no pattern that processors foresee
        for line in range(0, 4 * ROWS * ROWS, 64):
            ahead = f["n"] * (4 * ROWS) + (i * (4 * ROWS) + line)
            f.prefetch(f["s"] + ahead)
            f.prefetch(f["after"] + ahead, writes=True)
        k, q = f.load(_TYPE, f["k"] + i * 4), f.load(_TYPE, f["q"] + i * 4)
        for j, (update, total) in enumerate(zip(updates, sums, strict=True)):
            place = f["n"] * (4 * j) + i * 4
            value = f.fma(update, k, f.load(_TYPE, f["s"] + place) * decay)
            f.store(value, f["after"] + place)
            total.set(f.fma(value, q, total.get()))
    f.store(functions.sums_of_lanes([total.get() for total in sums]), f["out"])
    return f.finish()
