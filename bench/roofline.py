"""What the machine could do at best, and what a model asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.speed import N_UBATCH
from engine.arrays import F32, TokenIds
from engine.kernels import Kernels, Matrix
from engine.models import Model

_ATTEMPTS = 7


@dataclass(frozen=True)
class Roofline:
    """What the machine could do, and what a token asks of it."""

    read_bytes_per_s: float
    operations_per_s: float | None  # products and sums of small integers; None where the kernels have no such thing
    bytes_per_token: int  # of weights, read for each token in decode
    operations_per_token: int  # two for each weight that a token meets in prefill


def measure_roofline(model: Model, token_ids: TokenIds) -> Roofline:
    """Measure the machine with as many threads as the model's kernels have."""
    kernels = model.kernels
    with _products(kernels) as decoding:
        model.logits(model.forward(token_ids[:1], model.new_memory()))
    bytes_per_token = sum(weight.nbytes for _, weight in decoding)
    ubatch = token_ids[:N_UBATCH]
    with _products(kernels) as reading:
        model.forward(ubatch, model.new_memory())
    n_products = sum(n * weight.shape[0] * weight.shape[1] for n, weight in reading)
    return Roofline(
        read_bytes_per_s=_read_speed(bytes_per_token, kernels.n_threads),
        operations_per_s=_operation_speed(kernels),
        bytes_per_token=bytes_per_token,
        operations_per_token=2 * n_products // len(ubatch),
    )


@contextmanager
def _products(kernels: Kernels) -> Iterator[list[tuple[int, Matrix]]]:
    """Collect the matrix products of a forward pass: how many tokens, which weights."""
    products: list[tuple[int, Matrix]] = []
    multiply = kernels.matmul

    def matmul(x: F32, weight: Matrix) -> F32:
        products.append((len(x), weight))
        return multiply(x, weight)

    kernels.matmul = matmul  # type: ignore[method-assign]
    try:
        yield products
    finally:
        del kernels.matmul


def _read_speed(nbytes: int, n_threads: int) -> float:
    """Return how many bytes per second are read when threads read so many, each its own part, over and over."""
    parts = [np.ones(max(1, nbytes // n_threads // 4), np.float32) for _ in range(n_threads)]
    return sum(part.nbytes for part in parts) / _shortest(n_threads, lambda i: np.dot(parts[i], parts[i]))


def _operation_speed(kernels: Kernels) -> float | None:
    if not kernels.packs:
        return None
    from bench.dot_loop import DotLoop  # noqa: PLC0415 - the compiler may not be there
    from engine.kernels.compiled.isa import INSTRUCTION_SETS  # noqa: PLC0415

    loop = DotLoop(INSTRUCTION_SETS[kernels.name])
    return loop.n_operations * kernels.n_threads / _shortest(kernels.n_threads, lambda _: loop.run())


def _shortest(n_threads: int, work: Callable[[int], object]) -> float:
    """Return the seconds of the fastest of several attempts, in each of which every thread does the work."""
    times = []
    with ThreadPoolExecutor(n_threads) as threads:
        for _ in range(_ATTEMPTS):
            started = time.perf_counter()
            list(threads.map(work, range(n_threads)))
            times.append(time.perf_counter() - started)
    return min(times)
