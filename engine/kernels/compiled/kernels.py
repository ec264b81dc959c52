"""The compiled kernels, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels.compiled import attention, decode_attention, elementwise, store_rows
from engine.kernels.compiled.array_check import by_token, is_contiguous_inside
from engine.kernels.compiled.calls import Operation, Recorder, Recording
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import Compiling, Library
from engine.kernels.compiled.products import BoundMatrix, FloatProducts, Products, QuantizedProducts, digits_for
from engine.kernels.compiled.recurrent import RecurrentKernels
from engine.kernels.compiled.scratch import Scratch
from engine.kernels.compiled.spinning_team import SpinningTeam
from engine.kernels.compiled.team import MAX_TASKS
from engine.kernels.interface import Matrix, Repeat, RopeTable
from engine.kernels.kv_types import KV_TYPES, KVRows, RowSpan, values_per_head
from engine.kernels.layout import Layout
from engine.kernels.matrices import PackedMatrix, Part
from engine.kernels.reference import ReferenceKernels

_NO_WINDOW = 1 << 40
_QUERIES_PER_TASK = 96  # enough to make the conversion of K and V rows cheap
_ROWS_PER_TASK = 128  # of K and V where there are few queries: else there were fewer tasks than threads


@dataclass(frozen=True)
class _Attention:
    """Attention over rows of one K/V type."""

    prefill: tuple[Operation, ...]  # with tiles of queries one and two registers wide
    decode: Operation


class CompiledKernels(RecurrentKernels, ReferenceKernels):
    """Kernels for one instruction set; what has not been compiled is NumPy's."""

    packs = True

    def __init__(
        self,
        isa: InstructionSet,
        *,
        n_threads: int | None = None,
        cache_folder: Path | None = None,
        compiling: Compiling = lambda name: None,
    ) -> None:
        super().__init__(n_threads=n_threads)
        self.name = isa.name  # type: ignore[misc]
        self.isa = isa
        self._library = Library(isa, cache_folder=cache_folder, compiling=compiling)
        self.note = self._library.note
        self._spinning = SpinningTeam(self.team.n_threads, self._library)
        self._products: dict[tuple[Layout | str, int], Products] = {}
        self._attention: dict[np.dtype[Any], _Attention] = {}
        self._partial, self._scratch = Scratch(), Scratch()
        signatures = {
            "rms_norm": elementwise.NORM,
            "layer_norm": elementwise.NORM,
            "rope_halves": elementwise.ROPE,
            "rope_neighbors": elementwise.ROPE,
            "add": elementwise.ADD,
            **dict.fromkeys(elementwise.ACTIVATIONS, elementwise.ACTIVATION),
        }
        self._elementwise = self._link("elementwise", elementwise.write_elementwise, signatures)
        self._store_rows = self._link(
            "store_rows", store_rows.write_store_rows, {name: store_rows.parameters(name) for name in KV_TYPES}
        )

    @property
    def identity(self) -> str:
        return f"{self._library.identity} {super().identity}"

    def close(self) -> None:
        self._spinning.close()
        super().close()

    def prepare(self, weight: Matrix) -> Matrix:
        assert isinstance(weight, PackedMatrix)
        return BoundMatrix(weight, self._products_with)

    def prepare_attention(self, kv_type: np.dtype[Any]) -> None:
        self._attention_of(kv_type)

    def matmul(self, x: F32, weight: Matrix) -> F32:
        assert isinstance(weight, BoundMatrix)
        out = np.empty((len(x), weight.n_out), np.float32)
        x = np.ascontiguousarray(x)
        for part in weight.parts:
            part.products.multiply(part, x, out)
        return out

    def take_rows(self, weight: Matrix, rows: NDArray[np.int32]) -> F32:
        assert isinstance(weight, BoundMatrix)
        (part,) = weight.parts
        rows = np.ascontiguousarray(rows, np.int32)
        out = np.empty((len(rows), part.n_in), np.float32)
        for first in range(0, len(rows), MAX_TASKS):
            part.products.take_rows(part, rows[first : first + MAX_TASKS], out[first : first + MAX_TASKS])
        return out

    def add(self, x: F32, y: F32, *, scale: float = 1.0) -> F32:
        out = np.empty(x.shape, np.float32)
        x, y = by_token(x), by_token(np.broadcast_to(y, x.shape))
        n_rows, n = x.shape
        self._run("add", x=x, y=y, out=out, n_rows=n_rows, n=n, x_bytes=x.strides[0], y_bytes=y.strides[0], scale=scale)
        return out

    def multiply(self, x: F32, y: F32) -> F32:
        return self._activate_with("multiply", np.broadcast_to(y, x.shape), x)

    def store_rows(self, x: F32, rows: KVRows, span: RowSpan) -> None:
        n_rows, n_head_kv, head_dim = x.shape
        x = by_token(x)
        self._spinning.do(
            self._store_rows[_name_of(rows.dtype)], x=x, rows=rows, span=span.array,
            n_rows=n_rows, n_head_kv=n_head_kv, head_dim=head_dim, x_bytes=x.strides[0], rows_bytes=rows.strides[0],
        )  # fmt: skip

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return self._norm_with("rms_norm", x, weight, eps)

    def layer_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return self._norm_with("layer_norm", x, weight, eps)

    def _norm_with(self, name: str, x: F32, weight: F32, eps: float) -> F32:
        out = np.empty(x.shape, np.float32)
        x = _by_head(x)
        _, n_heads, n = x.shape
        weight = weight.reshape(-1, n)
        self._run(
            name, x=x, weight=weight, out=out, n_rows=out.size // n, n=n, n_heads=n_heads, x_bytes=x.strides[0],
            n_weights=len(weight), eps=eps,
        )  # fmt: skip
        return out

    def rope(self, x: F32, table: RopeTable) -> F32:
        n_tokens, n_head, head_dim = x.shape
        out = np.empty(x.shape, np.float32)
        x = by_token(x)
        self._run(
            "rope_neighbors" if table.interleaved else "rope_halves", x=x, cos=table.cos, sin=table.sin, out=out,
            n_tokens=n_tokens, n_heads=n_head, head_dim=head_dim, half=table.cos.shape[1], x_bytes=x.strides[0],
        )  # fmt: skip
        return out

    def attention(
        self,
        q: F32,
        k: KVRows,
        v: KVRows,
        span: RowSpan,
        *,
        scale: float,
        n_swa: int | None,
        softcap: float | None = None,
        sinks: F32 | None = None,
    ) -> F32:
        n_tokens, n_head, head_dim_k = q.shape
        head_dim_v = values_per_head(v)
        if head_dim_k % 8 or head_dim_v % 8 or not n_tokens:
            return super().attention(q, k, v, span, scale=scale, n_swa=n_swa, softcap=softcap, sinks=sinks)
        n_head_kv = k.shape[1]
        n_group = n_head // n_head_kv
        q = by_token(q)
        out = np.empty((n_tokens, n_head * head_dim_v), np.float32)
        # the cut into tasks depends on sizes alone: results must not depend on the number of threads
        if n_tokens == 1:
            operation, tokens, rows = self._attention_of(k.dtype).decode, 1, _ROWS_PER_TASK
            most_chunks = -(-len(k) // rows)  # of any token while the rows are in the same memory
            n_partial = n_head * decode_attention.partial_floats(head_dim_v)
            n_scratch = decode_attention.scratch_floats(head_dim_k, head_dim_v)
        else:
            n_registers = 1 if n_tokens * n_group <= attention.tile_width(self.isa, 1) else 2
            width = attention.tile_width(self.isa, n_registers)
            operation = self._attention_of(k.dtype).prefill[n_registers - 1]
            tokens = min(n_tokens, max(1, _QUERIES_PER_TASK // n_group))
            rows = _ROWS_PER_TASK if n_tokens * n_group <= width else len(span)
            most_chunks = -(-len(span) // rows)
            n_tiles = -(-tokens * n_group // width)
            n_partial = -(-n_tokens // tokens) * n_head_kv * n_tiles * attention.partial_floats(width, head_dim_v)
            n_scratch = attention.scratch_floats(width, head_dim_k, head_dim_v, n_tiles)
        self._spinning.do(
            operation, q=q, k=k, v=v, span=span.array, out=out,
            sinks=q if sinks is None else sinks, has_sinks=sinks is not None,
            n_tokens=n_tokens, q_bytes=q.strides[0], n_head_kv=n_head_kv, n_group=n_group,
            head_dim_k=head_dim_k, head_dim_v=head_dim_v, n_swa=_NO_WINDOW if n_swa is None else n_swa,
            scale=scale, softcap=softcap or 0.0, tokens_per_task=tokens, rows_per_task=rows,
            partial=self._partial.of(4 * most_chunks * n_partial),
            scratch=self._scratch.of(4 * n_scratch * self.n_threads), scratch_bytes=4 * n_scratch,
        )  # fmt: skip
        return out

    def silu_mul(self, gate: F32, up: F32) -> F32:
        return self._activate_with("silu_mul", gate, up)

    def gelu_mul(self, gate: F32, up: F32) -> F32:
        return self._activate_with("gelu_mul", gate, up)

    def sigmoid_mul(self, gate: F32, up: F32) -> F32:
        return self._activate_with("sigmoid_mul", gate, up)

    def _activate_with(self, name: str, gate: F32, up: F32) -> F32:
        out = np.empty(up.shape, np.float32)
        gate, up = by_token(gate), by_token(up)
        n_rows, n = up.shape
        self._run(
            name, gate=gate, up=up, out=out, n_rows=n_rows, n=n, gate_bytes=gate.strides[0], up_bytes=up.strides[0]
        )
        return out

    def record(self, step: Callable[[], F32], *, inputs: Sequence[NDArray[Any]]) -> tuple[F32, Repeat | None]:
        recorder = Recorder(inputs)
        with self._spinning.recording(recorder):
            result = step()
        if not recorder.complete or not recorder.knows(result):
            return result, None
        return result, partial(self._repeat, recorder.finish())

    def _repeat(self, recording: Recording) -> None:
        recording.swap_states()
        self._spinning.replay(recording)

    def _run(self, operation: str, /, **arguments: Any) -> None:
        self._spinning.do(self._elementwise[operation], **arguments)

    def _products_with(self, part: Part) -> Products:
        kind, n_digits = key = part.kind, digits_for(part, self.isa)
        if key not in self._products:
            self._products[key] = (
                FloatProducts(self._library, self._spinning, kind)
                if isinstance(kind, str)
                else QuantizedProducts(self._library, self._spinning, kind, n_digits)
            )
        return self._products[key]

    def _attention_of(self, kv_type: np.dtype[Any]) -> _Attention:
        """Return the attention over rows of a K/V type."""
        if kv_type not in self._attention:
            name = _name_of(kv_type)
            prefill = self._link(
                f"attention_{name}",
                partial(attention.write_attention, kv_type=name),
                dict.fromkeys(["attention_1", "attention_2"], attention.parameters(name)),
            )
            decode = self._link(
                f"decode_attention_{name}",
                partial(decode_attention.write_decode_attention, kv_type=name),
                {"decode_attention": attention.parameters(name)},
            )
            self._attention[kv_type] = _Attention(tuple(prefill.values()), decode["decode_attention"])
        return self._attention[kv_type]


def _name_of(kv_type: np.dtype[Any]) -> str:
    return next(name for name, dtype in KV_TYPES.items() if dtype == kv_type)


def _by_head(x: F32) -> F32:
    """Return x (…, n) with three axes, of which only the first may have gaps; copied if need be."""
    if x.ndim == 3 and is_contiguous_inside(x):
        return x
    return by_token(x.reshape(-1, 1, x.shape[-1]))  # heads that lie evenly apart need not be copied
