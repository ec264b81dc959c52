"""Attention in blocks of rows, with a running maximum and sum (arXiv 2205.14135).

The scores of a block are computed transposed: the queries (tokens times the heads that share a K/V head) lie side
by side in the lanes of the registers. So each query's maximum and sum are lanes as well, nothing is ever added up
across a register, and neither K nor V need to be turned around.

A task takes one K/V head, a run of tokens and a chunk of rows, and leaves for each tile of queries the maximum, the
sum and the weighted values of what it saw; a second phase puts the chunks together. Chunks depend on sizes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from llvmlite import ir as llvm_ir

from engine.kernels.compiled import functions
from engine.kernels.compiled.ir import Function, Module, Value, f16, f32, i8, i32, i64, ptr, vec
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.operation import Array, Count, Operations, Parameters, Task, Use, divided
from engine.kernels.compiled.product import call_product, write_product
from engine.kernels.kv_types import KV_TYPES, RowSpan

ROWS = 64  # K and V rows that are converted and multiplied at once
_CACHE_LINE = 64  # bytes
_ROWS_AHEAD = 16  # how far before they are converted rows are asked for: what other heads have lies between them
_LANES = 8  # values that are converted at once; every head's size is a multiple of it
LOWEST = -1e30  # a maximum before anything was seen: finite, so that differences with -inf are


def parameters(kv_type: str) -> Parameters:
    """Return the parameters of attention over rows of a K/V type."""
    return {
        "q": Array(Use.READ, "n_tokens n_head_kv*n_group head_dim_k", step="q_bytes"),
        "k": Array(Use.LASTING, ". n_head_kv .", KV_TYPES[kv_type]),
        "v": Array(Use.LASTING, ". n_head_kv .", KV_TYPES[kv_type]),
        "span": Array(Use.LASTING, "3", np.int64),  # which of the rows are seen, see kv_types.RowSpan
        "out": Array(Use.WRITTEN, "n_tokens n_head_kv*n_group*head_dim_v"),
        "sinks": Array(Use.READ, "n_head_kv*n_group", given="has_sinks"),
        "has_sinks": i64,
        "n_tokens": i64,
        "q_bytes": i64,
        "n_head_kv": i64,
        "n_group": i64,  # query heads that share a K/V head
        "head_dim_k": i64,
        "head_dim_v": i64,
        "n_swa": i64,
        "scale": f32,
        "softcap": f32,  # 0 for none
        "tokens_per_task": i64,
        "rows_per_task": i64,
        "partial": Array(Use.LASTING, dtype=np.uint8),  # (chunks, K/V heads, runs of tokens, tiles): see partial_floats
        "scratch": Array(Use.LASTING, dtype=np.uint8),  # scratch_bytes for each thread
        "scratch_bytes": i64,
    }


def complete(kv_type: str, f: Function) -> dict[str, Value]:
    """Write what follows from the rows that are seen: where they are, how many, and the positions of the first ones."""
    first, end, start = (
        f.load(i64, f["span"] + place, align=8) for place in (RowSpan.FIRST, RowSpan.END, RowSpan.START)
    )
    n_rows = end - first
    return {
        **{
            rows: f[rows] + first * f["n_head_kv"] * _row_bytes(kv_type, f[head_dim])
            for rows, head_dim in (("k", "head_dim_k"), ("v", "head_dim_v"))
        },
        "n_rows": n_rows,
        "q_start": start + end - f["n_tokens"],
        "k_start": start + first,
        "n_chunks": divided(f, n_rows, f["rows_per_task"]),
    }


def tile_width(isa: InstructionSet, n_registers: int) -> int:
    """Return how many queries a tile takes."""
    return isa.lanes * n_registers


def partial_floats(width: int, head_dim_v: int) -> int:
    """Return the size of what a task leaves for a tile: maxima, sums, values."""
    return width * (2 + head_dim_v)


def scratch_floats(width: int, head_dim_k: int, head_dim_v: int, n_tiles: int) -> int:
    """Return the size of a thread's scratch memory: the rows as float32, the scores, the queries, their positions."""
    return ROWS * (head_dim_k + head_dim_v + width) + n_tiles * width * (head_dim_k + 1)


def write_attention(module: Module, isa: InstructionSet, kv_type: str) -> None:
    """Write `attention_1` and `attention_2`, whose tiles are one and two registers wide, for a K/V type."""
    operations = Operations(module, isa)
    convert = write_convert(module, kv_type)
    for n_registers in (1, 2):
        task = _Task(
            isa,
            n_registers,
            convert,
            kv_type,
            scores=write_product(module, isa, n_registers, adds=False),
            values=write_product(module, isa, n_registers, adds=True),
        )
        phases: list[tuple[Count, Task]] = [(_n_tasks, task.write), (_n_parts, task.write_merge)]
        operations.add(f"attention_{n_registers}", parameters(kv_type), phases, partial(complete, kv_type))


def _n_parts(f: Function) -> Value:
    """Write the number of runs of tokens times K/V heads."""
    return divided(f, f["n_tokens"], f["tokens_per_task"]) * f["n_head_kv"]


def _n_tasks(f: Function) -> Value:
    return _n_parts(f) * f["n_chunks"]


def convert_rows(
    f: Function,
    convert: llvm_ir.Function,
    kv_type: str,
    *,
    row: Value,
    n_rows: Value,
    head: Value,
    k32: Value,
    v32: Value,
) -> None:
    """Convert n_rows K and V rows of one head, from `row` on."""
    for rows, to, n in (("k", k32, f["head_dim_k"]), ("v", v32, f["head_dim_v"])):
        nbytes = _row_bytes(kv_type, n)
        stride = f["n_head_kv"] * nbytes
        f.call(convert, f[rows] + (row * stride + head * nbytes), to, n_rows, n, stride)


def _row_bytes(kv_type: str, n_values: Value) -> Value:
    """Return the bytes of so many values in a K/V type."""
    match kv_type:
        case "f32":
            return n_values * 4
        case "f16":
            return n_values * 2
        case "q8_0":
            return n_values // 32 * 34
        case _:
            return n_values // 32 * 18


def write_convert(module: Module, kv_type: str) -> llvm_ir.Function:
    """Write the conversion of n_rows rows of one head, `stride` bytes apart, to float32."""
    f = module.function("convert", {"rows": ptr, "out": ptr, "n_rows": i64, "n": i64, "stride": i64})
    f.function.attributes.add("noinline")
    with f.loop(f["n_rows"]) as row:
        source, target = f["rows"] + row * f["stride"], f["out"] + row * f["n"] * 4
        with f.loop(_row_bytes(kv_type, f["n"]), step=_CACHE_LINE) as line:
            f.prefetch(source + (f["stride"] * _ROWS_AHEAD + line))
        if kv_type in ("f16", "f32"):
            element, width = (f16, 2) if kv_type == "f16" else (f32, 4)
            with f.loop(f["n"], step=_LANES) as i:
                f.store(f.load(vec(element, _LANES), source + i * width).to(vec(f32, _LANES)), target + i * 4)
        else:
            with f.loop(f["n"] // 32) as block:
                _convert_block(f, kv_type, source + block * (34 if kv_type == "q8_0" else 18), target + block * 128)
    return f.finish()


def _convert_block(f: Function, kv_type: str, block: Value, target: Value) -> None:
    d = f.load(f16, block).to(f32).splat(_LANES)
    for i in range(4):
        if kv_type == "q8_0":
            quants = f.load(vec(i8, _LANES), block + (2 + _LANES * i)).to(vec(i32, _LANES))
        else:
            both = f.load(vec(i8, _LANES), block + (2 + _LANES * (i % 2))).unsigned_to(vec(i32, _LANES))
            quants = (both.unsigned_shift(4) if i >= 2 else both & 15) - 8
        f.store(quants.to(vec(f32, _LANES)) * d, target + 4 * _LANES * i)


@dataclass(frozen=True)
class _Task:
    """Writes the two phases for one width of tiles."""

    isa: InstructionSet
    n_registers: int
    convert: llvm_ir.Function
    kv_type: str
    scores: llvm_ir.Function
    values: llvm_ir.Function

    @property
    def width(self) -> int:
        return tile_width(self.isa, self.n_registers)

    def registers(self) -> range:
        return range(0, 4 * self.width, 4 * self.isa.lanes)  # byte offsets

    def partial(self, f: Function, chunk: Value, part: Value, tile: Value) -> Value:
        """Return where a task's result for a tile is; `part` counts runs of tokens and K/V heads."""
        n_tiles = self.n_tiles(f)
        n_parts = _n_parts(f)
        index = (chunk * n_parts + part) * n_tiles + tile
        return f["partial"] + index * (f["head_dim_v"] + 2) * (4 * self.width)

    def n_tiles(self, f: Function) -> Value:
        return (f["tokens_per_task"] * f["n_group"] + (self.width - 1)) // self.width

    def write(self, f: Function) -> None:
        n_parts = _n_parts(f)
        part, chunk = f["task"] % n_parts, f["task"] // n_parts
        head, first = part % f["n_head_kv"], part // f["n_head_kv"] * f["tokens_per_task"]
        n_tokens = f.min(f["n_tokens"] - first, f["tokens_per_task"])
        n_queries = n_tokens * f["n_group"]
        scratch = f["scratch"] + f["thread"] * f["scratch_bytes"]
        k32 = scratch
        v32 = k32 + f["head_dim_k"] * (4 * ROWS)
        scores = v32 + f["head_dim_v"] * (4 * ROWS)
        queries = scores + 4 * ROWS * self.width
        n_tiles = (n_queries + (self.width - 1)) // self.width
        positions = queries + n_tiles * f["head_dim_k"] * (4 * self.width)
        with f.loop(n_tiles) as tile:
            self._begin(f, tile, first, head, n_queries, queries, positions)
            self._clear(f, self.partial(f, chunk, part, tile))
        # the rows that any of the queries sees, within the chunk
        last_seen = f["q_start"] + first + n_tokens - f["k_start"]
        first_seen = f["q_start"] + first - f["n_swa"] + 1 - f["k_start"]
        low = chunk * f["rows_per_task"]
        stop = f.min(f.min(low + f["rows_per_task"], f["n_rows"]), last_seen)
        aligned = f.select(first_seen < 0, f.constant(i64, 0), first_seen // ROWS * ROWS)
        start = f.select(low < aligned, aligned, low)
        with f.loop(stop, start, ROWS) as row:
            n_rows = f.min(stop - row, ROWS)
            convert_rows(f, self.convert, self.kv_type, row=row, n_rows=n_rows, head=head, k32=k32, v32=v32)
            with f.loop(n_tiles) as tile:
                self._block(
                    f,
                    row=row,
                    n_rows=n_rows,
                    k32=k32,
                    v32=v32,
                    scores=scores,
                    queries=queries + tile * f["head_dim_k"] * (4 * self.width),
                    positions=positions + tile * (4 * self.width),
                    result=self.partial(f, chunk, part, tile),
                )

    def _begin(
        self, f: Function, tile: Value, first: Value, head: Value, n_queries: Value, queries: Value, positions: Value
    ) -> None:
        """Lay a tile's queries, scaled, side by side, and note their positions."""
        target = queries + tile * f["head_dim_k"] * (4 * self.width)
        with f.loop(self.width) as lane:
            query = f.min(tile * self.width + lane, n_queries - 1)  # what fills up the last tile is computed in vain
            token, member = first + query // f["n_group"], query % f["n_group"]
            source = f["q"] + (token * f["q_bytes"] + (head * f["n_group"] + member) * f["head_dim_k"] * 4)
            with f.loop(f["head_dim_k"]) as i:
                f.store(f.load(f32, source + i * 4) * f["scale"], target + (i * (4 * self.width) + lane * 4))
            position = (f["q_start"] + token - f["k_start"]).to(i32)  # counted from the first row
            f.store(position, positions + (tile * self.width + lane) * 4)

    def _clear(self, f: Function, result: Value) -> None:
        for offset in self.registers():
            f.store(f.constant(self.isa.f32s, LOWEST), result + offset)
        with f.loop(f["head_dim_v"] + 2, 1) as row:
            for offset in self.registers():
                f.store(f.constant(self.isa.f32s, 0.0), result + (row * (4 * self.width) + offset))

    def _block(
        self,
        f: Function,
        *,
        row: Value,
        n_rows: Value,
        k32: Value,
        v32: Value,
        scores: Value,
        queries: Value,
        positions: Value,
        result: Value,
    ) -> None:
        """Add a block of rows to what a tile has seen."""
        line = 4 * self.width
        call_product(
            f, self.scores, k32, queries, scores,
            n_rows=n_rows, n_k=f["head_dim_k"],
            a_row_bytes=f["head_dim_k"] * 4, a_k_bytes=4, b_bytes=line, out_bytes=line,
        )  # fmt: skip
        self._softcap(f, scores, n_rows)
        factors = [
            self._weigh(f, row, n_rows, scores + offset, positions + offset, result + offset)
            for offset in self.registers()
        ]
        with f.loop(f["head_dim_v"] + 2, 2) as i:
            for offset, factor in zip(self.registers(), factors, strict=True):
                place = result + (i * line + offset)
                f.store(f.load(self.isa.f32s, place) * factor, place)
        call_product(
            f, self.values, v32, scores, result + 2 * line,
            n_rows=f["head_dim_v"], n_k=n_rows,
            a_row_bytes=4, a_k_bytes=f["head_dim_v"] * 4, b_bytes=line, out_bytes=line,
        )  # fmt: skip

    def _softcap(self, f: Function, scores: Value, n_rows: Value) -> None:
        with f.when(f["softcap"] > 0.0):
            cap = f["softcap"].splat(self.isa.lanes)
            with f.loop(n_rows) as j:
                for offset in self.registers():
                    place = scores + (j * (4 * self.width) + offset)
                    f.store(functions.tanh(f, f.load(self.isa.f32s, place) / cap) * cap, place)

    def _weigh(self, f: Function, row: Value, n_rows: Value, scores: Value, positions: Value, result: Value) -> Value:
        """Turn a register's scores into weights, and add them up; return the factor of what was there before."""
        isa, line = self.isa, 4 * self.width
        query = f.load(isa.i32s, positions)
        oldest = query - f.min(f["n_swa"], 1 << 30).to(i32).splat(isa.lanes)
        before = f.load(isa.f32s, result)
        largest = f.variable(before)
        hidden = f.constant(isa.f32s, float("-inf"))
        with f.loop(n_rows) as j:
            place = scores + j * line
            position = (row + j).to(i32).splat(isa.lanes)
            seen = (position <= query) & (position > oldest)
            score = f.select(seen, f.load(isa.f32s, place), hidden)
            f.store(score, place)
            largest.set(f.select(score > largest.get(), score, largest.get()))
        now = largest.get()
        total = f.variable(f.constant(isa.f32s, 0.0))
        with f.loop(n_rows) as j:
            weight = functions.exp(f, f.load(isa.f32s, scores + j * line) - now)
            f.store(weight, scores + j * line)
            total.set(total.get() + weight)
        factor = functions.exp(f, before - now)
        summed = f.fma(f.load(isa.f32s, result + line), factor, total.get())
        f.store(now, result)
        f.store(summed, result + line)
        return factor

    def write_merge(self, f: Function) -> None:
        """Put the chunks of a run of tokens and a K/V head together."""
        part = f["task"]
        head, first = part % f["n_head_kv"], part // f["n_head_kv"] * f["tokens_per_task"]
        n_queries = f.min(f["n_tokens"] - first, f["tokens_per_task"]) * f["n_group"]
        line = 4 * self.width
        with f.loop(n_queries) as query:
            tile, lane = query // self.width, query % self.width
            token, member = first + query // f["n_group"], head * f["n_group"] + query % f["n_group"]
            largest = f.variable(f.constant(f32, LOWEST))
            has_sink = f["has_sinks"].equals(1)
            with f.when(has_sink):
                largest.set(f.load(f32, f["sinks"] + member * 4))
            sink = largest.get()
            with f.loop(f["n_chunks"]) as chunk:
                maximum = f.load(f32, self.partial(f, chunk, part, tile) + lane * 4)
                largest.set(f.select(maximum > largest.get(), maximum, largest.get()))
            top = largest.get()

            def weight(value: Value, top: Value = top) -> Value:
                return functions.exp(f, (value - top).splat(self.isa.lanes)).lane(0)

            total = f.variable(f.constant(f32, 0.0))
            with f.when(has_sink):
                total.set(weight(sink))
            out = f["out"] + (token * f["n_head_kv"] * f["n_group"] + member) * f["head_dim_v"] * 4
            with f.loop(f["head_dim_v"]) as i:
                f.store(f.constant(f32, 0.0), out + i * 4)
            with f.loop(f["n_chunks"]) as chunk:
                source = self.partial(f, chunk, part, tile) + lane * 4
                factor = weight(f.load(f32, source))
                total.set(f.fma(f.load(f32, source + line), factor, total.get()))
                with f.loop(f["head_dim_v"]) as i:
                    value = f.load(f32, source + (i + 2) * line)
                    f.store(f.fma(value, factor, f.load(f32, out + i * 4)), out + i * 4)
            inverse = 1.0 / total.get()
            with f.loop(f["head_dim_v"]) as i:
                f.store(f.load(f32, out + i * 4) * inverse, out + i * 4)
