"""The compiled products with weight matrices: what they are called with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels.compiled import float_matmul, matmul
from engine.kernels.compiled.activations import activation_nbytes
from engine.kernels.compiled.bricks import BrickReader
from engine.kernels.compiled.calls import link_operations
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import Library
from engine.kernels.compiled.scratch import Scratch
from engine.kernels.compiled.spinning_team import SpinningTeam
from engine.kernels.interface import Matrix
from engine.kernels.layout import Layout
from engine.kernels.matrices import PackedMatrix, Part


class Products(ABC):
    """The compiled products with one kind of part."""

    def __init__(self, library: Library, team: SpinningTeam, name: str, write: Callable[..., None]) -> None:
        self._operations = link_operations(library, f"matmul_{name}", write, matmul.SIGNATURES)
        self._team = team
        self.n_threads = team.n_threads
        self._activations, self._strips = Scratch(), Scratch()

    @abstractmethod
    def activation_nbytes(self, n_tokens: int, n_in: int) -> int:
        """Return the size of quantized activations; 0 where they are not."""

    @abstractmethod
    def strip_nbytes(self, n_in: int) -> int:
        """Return the size of a thread's strip."""

    def bind(self, part: Part, *, offset: int) -> BoundPart:
        """Return a part ready for products, whose results go to the columns of the output from `offset` on."""
        sizes = [part.data.ctypes.data, part.n_in, part.n_out, part.data.shape[1], self.strip_nbytes(part.n_in)]
        activations = np.empty(self.activation_nbytes(1, part.n_in), np.uint8)
        return BoundPart(self, part, np.array(sizes, np.int64), activations, offset)

    def multiply(self, part: BoundPart, x: F32, out: F32) -> None:
        """Write the products of x (n_tokens, n_in) with a part's rows to its columns of out (n_tokens, n_out)."""
        n_tokens, n_out = out.shape
        if n_tokens == 1:
            operation, activations = self._operations["matvec"], part.activations
        else:
            operation = self._operations["matmul"]
            activations = self._activations.of(self.activation_nbytes(n_tokens, part.n_in))
        strips = self._strips.of(part.strips_nbytes)
        self._team.do(
            operation, part=part.address, x=x, out=out, n_tokens=n_tokens,
            out_offset=part.out_offset, out_bytes=4 * n_out, activations=activations, strips=strips,
        )  # fmt: skip

    def take_rows(self, part: BoundPart, rows: NDArray[np.int32], out: F32) -> None:
        """Write rows of a part, by their numbers, to out (len(rows), n_in)."""
        strips = self._strips.of(part.strips_nbytes)
        self._team.do(
            self._operations["take_rows"], part=part.address, x=rows, out=out, n_tokens=len(rows),
            out_offset=0, out_bytes=4 * part.n_in, activations=strips, strips=strips,
        )  # fmt: skip


class BoundPart:
    """A part, and what compiled functions must know of it: see `matmul.PART`."""

    def __init__(
        self,
        products: Products,
        part: Part,
        description: NDArray[np.int64],
        activations: NDArray[np.uint8],
        offset: int,
    ) -> None:
        self.products = products
        self.n_in = part.n_in
        self.activations = activations  # scratch memory for those of one token
        self.strips_nbytes = int(description[-1]) * products.n_threads
        self.out_offset = 4 * offset
        self._memory = part.data, description
        self.address = description.ctypes.data


class BoundMatrix(Matrix):
    """A matrix whose parts are ready for compiled products."""

    def __init__(self, matrix: PackedMatrix, products_with: Callable[[Part], Products]) -> None:
        self._shape, self._nbytes = matrix.shape, matrix.nbytes
        self.n_out = self._shape[0]
        offsets = accumulate((part.n_out for part in matrix.parts), initial=0)
        self.parts = tuple(
            products_with(part).bind(part, offset=offset) for part, offset in zip(matrix.parts, offsets, strict=False)
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def nbytes(self) -> int:
        return self._nbytes


def digits_for(part: Part, isa: InstructionSet) -> int:
    """Return how many digits the activations have that meet a part: see `activations`."""
    if isinstance(part.kind, str) or BrickReader(part.kind, isa).wide:
        return 1
    return 2 if part.precise else 1


class QuantizedProducts(Products):
    """Products with bricks of small integers."""

    def __init__(self, library: Library, team: SpinningTeam, layout: Layout, n_digits: int) -> None:
        # what a layout means is not in the sources that name the cache's folder
        name = f"{layout.name}-{xxhash.xxh3_64_hexdigest(repr(layout).encode())}"
        self._wide = BrickReader(layout, library.isa).wide
        self._n_digits = n_digits
        if n_digits > 1:
            name = f"{name}-{n_digits}"
        super().__init__(library, team, name, partial(matmul.write_matmul, layout=layout, n_digits=n_digits))
        self._n_runs = layout.n_runs

    def activation_nbytes(self, n_tokens: int, n_in: int) -> int:
        return activation_nbytes(n_tokens * self._n_digits, n_in, wide=self._wide, n_runs=self._n_runs)

    def strip_nbytes(self, n_in: int) -> int:
        return matmul.strip_nbytes(n_in, wide=self._wide, n_runs=self._n_runs)


class FloatProducts(Products):
    """Products with floats."""

    def __init__(self, library: Library, team: SpinningTeam, type_name: str) -> None:
        super().__init__(library, team, type_name, partial(float_matmul.write_float_matmul, type_name=type_name))

    def activation_nbytes(self, n_tokens: int, n_in: int) -> int:
        return 0

    def strip_nbytes(self, n_in: int) -> int:
        return float_matmul.strip_nbytes(n_in)
