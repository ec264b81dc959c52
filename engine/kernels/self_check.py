"""A short check at the start that compiled kernels compute what NumPy does on the machine that they are to run on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import F32
from engine.kernels.interface import Kernels
from engine.kernels.kv_types import RowSpan
from engine.kernels.layout import BLOCK, GROUP, Layout
from engine.kernels.matrices import DenseMatrix, PackedMatrix, Part
from engine.kernels.reference import ReferenceKernels

_N_OUT, _N_IN, _TOKENS = 20, 2 * BLOCK, (1, 9)  # rows that do not fill a group; one token, and more than a tile takes
_TOLERANCE = 0.02  # of the results' norm: activations are rounded to 8 bits
_LAYOUTS = (  # of weights without a sign and with one: they are multiplied in different ways
    Layout("q4_0", value_bits=4, run=32, scale="f16", zero_point=8),
    Layout("q8_0", value_bits=8, run=32, scale="f16"),
)


class KernelFault(Exception):
    """Kernels do not compute what they should."""


def check_kernels(kernels: Kernels) -> None:
    """Raise KernelFault unless products, attention, norms and activations come out right."""
    for n_tokens in _TOKENS:
        _check(kernels, ReferenceKernels(n_threads=1), n_tokens)


def _check(kernels: Kernels, reference: Kernels, n_tokens: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((n_tokens, _N_IN), np.float32)
    for part, weights in (*(_quantized(layout, random) for layout in _LAYOUTS), _floats(random)):
        packed = kernels.prepare(PackedMatrix((part,)))
        _compare("products", kernels.matmul(x, packed), reference.matmul(x, DenseMatrix(weights)))
    q = x.reshape(n_tokens, 4, -1)
    k, v = (random.standard_normal((n_tokens, 2, _N_IN // 4)).astype(np.float16) for _ in range(2))
    operations: dict[str, Callable[[Kernels], F32]] = {
        "attention": lambda by: by.attention(q, k, v, RowSpan(end=n_tokens), scale=1.0, n_swa=None),
        "norms": lambda by: by.rms_norm(x, x[0], 1e-6),
        "activations": lambda by: by.silu_mul(x, x),
    }
    for what, operation in operations.items():
        _compare(what, operation(kernels), operation(reference))


def _compare(what: str, actual: F32, expected: F32) -> None:
    if not np.linalg.norm(actual - expected) <= _TOLERANCE * np.linalg.norm(expected):
        raise KernelFault(f"their {what} come out wrong")


def _quantized(layout: Layout, random: np.random.Generator) -> tuple[Part, F32]:
    """Return a part of any values, and its weights (_N_OUT, _N_IN)."""
    n_groups, n_blocks, per_byte = -(-_N_OUT // GROUP), _N_IN // BLOCK, 8 // layout.low_bits
    raw = random.integers(0, 256, (n_groups, n_blocks, layout.value_bytes // 64, GROUP, 4), np.uint8)
    scales = random.uniform(0.01, 0.02, (n_groups, n_blocks, GROUP)).astype(np.float16)
    bricks = [raw.reshape(n_groups, n_blocks, -1), scales.view(np.uint8)]
    data = np.concatenate(bricks, axis=-1).reshape(n_groups, -1)
    bits = [(raw >> np.uint8(layout.low_bits * i)) & np.uint8((1 << layout.low_bits) - 1) for i in range(per_byte)]
    values = np.stack(bits, axis=3)  # (n_groups, n_blocks, unit, place in the byte, row, 4)
    by_row = values.view(np.int8 if layout.is_signed else np.uint8).transpose(0, 4, 1, 2, 3, 5)
    integers = by_row.reshape(n_groups, GROUP, n_blocks, BLOCK).astype(np.float32) - np.float32(layout.zero_point)
    weights = integers * scales.transpose(0, 2, 1)[..., None].astype(np.float32)
    return Part(layout, data, n_out=_N_OUT, n_in=_N_IN), weights.reshape(-1, _N_IN)[:_N_OUT]


def _floats(random: np.random.Generator) -> tuple[Part, F32]:
    """Return the same in float32."""
    groups = random.standard_normal((-(-_N_OUT // GROUP), _N_IN, GROUP), np.float32)
    data = groups.reshape(len(groups), -1).view(np.uint8)
    return Part("f32", data, n_out=_N_OUT, n_in=_N_IN), groups.transpose(0, 2, 1).reshape(-1, _N_IN)[:_N_OUT].copy()
