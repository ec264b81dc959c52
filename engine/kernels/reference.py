"""The NumPy kernels: slow, always there, and the truth that faster ones are held against.

BLAS is kept to one thread and the work is cut here, by shapes alone: a threaded BLAS rounds differently with
each number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from engine.arrays import F32
from engine.kernels.interface import Matrix, RopeTable
from engine.kernels.kv_types import KVRows, RowSpan, dequantize_rows, store_rows, values_per_head
from engine.kernels.matrices import DenseMatrix
from engine.kernels.reference_recurrent import RecurrentReference

_TASK_FLOPS = 1 << 20  # a smaller matrix product is not worth waking a thread for
_MAX_TASKS = 16
_QUERY_BLOCK = 128  # queries per attention task: bounds the scores, and skips most of what causality hides
_ACTIVATION_ROWS = 32
_CONVERTED_ROWS = 512


@cache  # it looks through all libraries of the process, and each checkpoint asks
def _blas_identities() -> list[str]:
    libraries = (info for info in threadpool_info() if info["user_api"] == "blas")
    return sorted(f"{b['internal_api']}-{b['version']}-{b.get('architecture')}" for b in libraries)


class ReferenceKernels(RecurrentReference):
    """NumPy on float32 weights."""

    name: ClassVar[str] = "numpy"

    def __init__(self, *, n_threads: int | None = None) -> None:
        super().__init__(n_threads=n_threads)
        threadpool_limits(1, user_api="blas")

    @property
    def identity(self) -> str:
        return " ".join([f"{self.name}-{np.__version__}", *_blas_identities()])

    def matmul(self, x: F32, weight: Matrix) -> F32:
        assert isinstance(weight, DenseMatrix)
        array, (n_out, _) = weight.array, weight.shape
        out = np.empty((len(x), n_out), np.float32)
        n_tasks = min(_MAX_TASKS, max(1, x.size * n_out // _TASK_FLOPS))
        step = -(-n_out // n_tasks)

        def multiply(task: int) -> None:
            part = slice(task * step, (task + 1) * step)
            np.matmul(x, array[part].T, out=out[:, part])

        self.team.run(-(-n_out // step), multiply)
        return out

    def take_rows(self, weight: Matrix, rows: NDArray[np.int32]) -> F32:
        assert isinstance(weight, DenseMatrix)
        out: F32 = weight.array[rows]
        return out

    def add(self, x: F32, y: F32, *, scale: float = 1.0) -> F32:
        return x + (y if scale == 1.0 else np.float32(scale) * y)

    def multiply(self, x: F32, y: F32) -> F32:
        return x * y

    def store_rows(self, x: F32, rows: KVRows, span: RowSpan) -> None:
        store_rows(x, rows, span)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean_square = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
        out: F32 = x * (1 / np.sqrt(mean_square + np.float32(eps))) * weight
        return out

    def layer_norm(self, x: F32, weight: F32, eps: float) -> F32:
        centered = x - x.mean(axis=-1, keepdims=True)
        return self.rms_norm(centered, weight, eps)

    def rope(self, x: F32, table: RopeTable) -> F32:
        half = table.cos.shape[1]
        cos, sin = table.cos[:, None], table.sin[:, None]  # the same angles for every head
        out = x.copy()
        if table.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
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
        n_tokens, n_head, _ = q.shape
        n_head_kv = k.shape[1]
        group = n_head // n_head_kv
        keys, values = (self._to_float32(rows[span.first : span.end]) for rows in (k, v))
        q_start, k_start = span.start + span.end - n_tokens, span.start + span.first
        out = np.empty((n_tokens, n_head, values.shape[2]), np.float32)

        def attend(task: int) -> None:
            block, head = divmod(task, n_head_kv)
            queries = slice(block * _QUERY_BLOCK, min((block + 1) * _QUERY_BLOCK, n_tokens))
            heads = slice(head * group, (head + 1) * group)
            first, last = q_start + queries.start, q_start + queries.stop - 1  # positions
            low = 0 if n_swa is None else max(0, first - n_swa + 1 - k_start)
            rows = slice(low, last + 1 - k_start)
            n_queries = queries.stop - queries.start
            scores = (q[queries, heads] * np.float32(scale)).reshape(n_queries * group, -1) @ keys[rows, head].T
            scores = scores.reshape(n_queries, group, -1)
            if softcap is not None:
                scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
            if n_queries > 1 or n_swa is not None:
                q_pos = np.arange(first, last + 1)[:, None]
                k_pos = np.arange(rows.start, rows.stop)[None] + k_start
                hidden = k_pos > q_pos if n_swa is None else (k_pos > q_pos) | (k_pos <= q_pos - n_swa)
                scores += np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None]
            best = scores.max(axis=-1, keepdims=True)
            if sinks is not None:
                best = np.maximum(best, sinks[heads, None])
            scores -= best
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            if sinks is not None:
                total += np.exp(sinks[heads, None] - best)
            mixed = scores.reshape(n_queries * group, -1) @ values[rows, head]
            out[queries, heads] = mixed.reshape(n_queries, group, -1) / total

        n_tasks = -(-n_tokens // _QUERY_BLOCK) * n_head_kv
        if n_tokens == 1:  # too little work to wake threads for
            for task in range(n_tasks):
                attend(task)
        else:
            self.team.run(n_tasks, attend)
        return out.reshape(n_tokens, n_head * out.shape[2])

    def silu_mul(self, gate: F32, up: F32) -> F32:
        def silu(x: F32) -> F32:
            out: F32 = x / (1 + np.exp(-x))
            return out

        return self._activate(silu, gate, up)

    def gelu_mul(self, gate: F32, up: F32) -> F32:
        def gelu(x: F32) -> F32:
            inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
            out: F32 = np.float32(0.5) * x * (1 + np.tanh(inner))
            return out

        return self._activate(gelu, gate, up)

    def sigmoid_mul(self, gate: F32, up: F32) -> F32:
        def sigmoid(x: F32) -> F32:
            out: F32 = np.reciprocal(1 + np.exp(-x))
            return out

        return self._activate(sigmoid, gate, up)

    def clamped_swiglu(self, gate: F32, up: F32) -> F32:
        limit = np.float32(7)

        def swish(x: F32) -> F32:
            bounded = np.minimum(x, limit)
            out: F32 = bounded / (1 + np.exp(np.float32(-1.702) * bounded))
            return out

        return self._activate(swish, gate, np.clip(up, -limit, limit) + 1)

    def _to_float32(self, rows: KVRows) -> F32:
        out = np.empty((*rows.shape[:2], values_per_head(rows)), np.float32)

        def convert(task: int) -> None:
            part = slice(task * _CONVERTED_ROWS, (task + 1) * _CONVERTED_ROWS)
            out[part] = dequantize_rows(rows[part])

        self.team.run(-(-len(rows) // _CONVERTED_ROWS), convert)
        return out

    def _activate(self, activation: Callable[[F32], F32], gate: F32, up: F32) -> F32:
        out = np.empty(up.shape, np.float32)

        def apply(task: int) -> None:
            part = slice(task * _ACTIVATION_ROWS, (task + 1) * _ACTIVATION_ROWS)
            # exp overflows to infinity where the quotient is 0 anyway
            with np.errstate(over="ignore"):
                np.multiply(activation(gate[part]), up[part], out=out[part])

        self.team.run(-(-len(up) // _ACTIVATION_ROWS), apply)
        return out
