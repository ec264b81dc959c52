"""Weight matrices, as the kernels that were chosen keep them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels.interface import Matrix
from engine.kernels.layout import Layout


@dataclass(frozen=True)
class DenseMatrix(Matrix):
    """A matrix in float32, (n_out, n_in)."""

    array: F32

    @property
    def shape(self) -> tuple[int, int]:
        n_out, n_in = self.array.shape
        return n_out, n_in

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


class Part:
    """Rows that lie in memory in one way: groups of 16, (n_groups, group_bytes).

    `kind` is the layout of quantized rows, see `kernels.layout`, or `f32`, `f16` or `bf16`: then a group has its
    values of one input side by side, (n_in, 16). Activations that meet `precise` rows are rounded to more than 8 bits.
    """

    def __init__(
        self, kind: Layout | str, data: NDArray[np.uint8], *, n_out: int, n_in: int, precise: bool = False
    ) -> None:
        self.kind = kind
        self.data = data
        self.n_out = n_out
        self.n_in = n_in
        self.precise = precise


@dataclass(frozen=True)
class PackedMatrix(Matrix):
    """A matrix of parts, row behind row."""

    parts: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.n_out for part in self.parts), self.parts[0].n_in

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)
