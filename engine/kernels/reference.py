"""The NumPy kernels: slow, always there, and the truth that faster ones are held against.

BLAS is kept to one thread and the work is cut here, by shapes alone: a threaded BLAS rounds differently with
each number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from engine.kernels.interface import F32, Kernels, RopeTable, Rows

_TASK_FLOPS = 1 << 20  # a smaller matrix product is not worth waking a thread for
_MAX_TASKS = 16
_QUERY_BLOCK = 128  # queries per attention task: bounds the scores, and skips most of what causality hides
_ACTIVATION_ROWS = 32
_CONVERTED_ROWS = 512


class ReferenceKernels(Kernels):
    """NumPy on float32 weights."""

    name: ClassVar[str] = "numpy"

    def __init__(self, *, n_threads: int | None = None) -> None:
        super().__init__(n_threads=n_threads)
        threadpool_limits(1, user_api="blas")

    @property
    def identity(self) -> str:
        libraries = (info for info in threadpool_info() if info["user_api"] == "blas")
        blas = sorted(f"{b['internal_api']}-{b['version']}-{b.get('architecture')}" for b in libraries)
        return " ".join([f"{self.name}-{np.__version__}", *blas])

    def matmul(self, x: F32, weight: F32) -> F32:
        n_out = len(weight)
        out = np.empty((len(x), n_out), np.float32)
        n_tasks = min(_MAX_TASKS, max(1, x.size * n_out // _TASK_FLOPS))
        step = -(-n_out // n_tasks)

        def multiply(task: int) -> None:
            part = slice(task * step, (task + 1) * step)
            np.matmul(x, weight[part].T, out=out[:, part])

        self.team.run(-(-n_out // step), multiply)
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean_square = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
        out: F32 = x * (1 / np.sqrt(mean_square + np.float32(eps))) * weight
        return out

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
        self, q: F32, k: Rows, v: Rows, *, q_start: int, k_start: int, scale: float, n_swa: int | None
    ) -> F32:
        n_tokens, n_head, _ = q.shape
        n_head_kv = k.shape[1]
        group = n_head // n_head_kv
        keys, values = self._to_float32(k), self._to_float32(v)
        out = np.empty((n_tokens, n_head, v.shape[2]), np.float32)

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
            if n_queries > 1 or n_swa is not None:
                q_pos = np.arange(first, last + 1)[:, None]
                k_pos = np.arange(rows.start, rows.stop)[None] + k_start
                hidden = k_pos > q_pos if n_swa is None else (k_pos > q_pos) | (k_pos <= q_pos - n_swa)
                scores += np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None]
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            mixed = scores.reshape(n_queries * group, -1) @ values[rows, head]
            out[queries, heads] = mixed.reshape(n_queries, group, -1) / total

        n_tasks = -(-n_tokens // _QUERY_BLOCK) * n_head_kv
        if n_tokens == 1:  # too little work to wake threads for
            for task in range(n_tasks):
                attend(task)
        else:
            self.team.run(n_tasks, attend)
        return out.reshape(n_tokens, -1)

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

    def _to_float32(self, rows: Rows) -> F32:
        out = np.empty(rows.shape, np.float32)

        def convert(task: int) -> None:
            part = slice(task * _CONVERTED_ROWS, (task + 1) * _CONVERTED_ROWS)
            out[part] = rows[part]

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
