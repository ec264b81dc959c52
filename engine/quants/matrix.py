"""Weight matrices in the layout of the kernels that compute with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.kernels import DenseMatrix, Kernels, Matrix, PackedMatrix, Part
from engine.kernels.layout import GROUP
from engine.kernels.team import ThreadTeam
from engine.quants.blocks import BLOCK_FORMATS, QuantizedFormat, TensorData
from engine.quants.dequantize import dequantize
from engine.quants.packing import WeightMemory, pack, pack_floats

_PIECE_BYTES = 1 << 21  # what is read at once: it is still in a cache when it is rearranged


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file has it; the last axis of `shape` is contiguous."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: TensorData

    def parts(self) -> Iterator[Tensor]:
        """Yield the tensors along the first axis; each is good until the next one."""
        nbytes = len(self.data) // self.shape[0]
        for first in range(0, len(self.data), nbytes):
            yield Tensor(self.type, self.shape[1:], self.data[first : first + nbytes])

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of some rows after the other, (n_rows, row_bytes): whole groups but for the last ones."""
        n_rows = self.shape[0]
        row_bytes = len(self.data) // n_rows
        step = max(1, _PIECE_BYTES // (GROUP * row_bytes)) * GROUP
        for first in range(0, n_rows, step):
            yield self.data[first * row_bytes : min(first + step, n_rows) * row_bytes].reshape(-1, row_bytes)


def load_matrix(
    tensors: Sequence[Tensor], kernels: Kernels, memory: WeightMemory | None = None, *, precise: bool = False
) -> Matrix:
    """Return the rows of tensors (n_out, n_in) as one matrix, in `memory` if it is to lie beside others.

    Activations that meet a `precise` one are rounded to more than 8 bits, if they are rounded at all.
    """
    memory = memory or WeightMemory()
    matrix: Matrix
    if kernels.packs:
        matrix = PackedMatrix(tuple(_part(run, kernels.team, memory, precise=precise) for run in _runs(tensors)))
    else:
        dense = [dequantize(tensor.data, tensor.type, tensor.shape, team=kernels.team) for tensor in tensors]
        matrix = DenseMatrix(np.concatenate(dense) if len(dense) > 1 else dense[0])
    return kernels.prepare(matrix)


def _runs(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors that can lie behind each other as one: of the same type, and of whole groups of rows."""
    for _, same in groupby(tensors, key=lambda tensor: tensor.type):
        run: list[Tensor] = []
        for tensor in same:
            run.append(tensor)
            if tensor.shape[0] % GROUP:
                yield run
                run = []
        if run:
            yield run


def _part(tensors: Sequence[Tensor], team: ThreadTeam, memory: WeightMemory, *, precise: bool) -> Part:
    n_out, n_in = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
    block_format = BLOCK_FORMATS[tensors[0].type]
    if issubclass(block_format, QuantizedFormat):
        group_bytes = block_format.layout.group_bytes(n_in)
        part = Part(block_format.layout, memory.take(n_out, group_bytes), n_out=n_out, n_in=n_in, precise=precise)
    else:
        group_bytes = n_in * GROUP * block_format.block_bytes
        part = Part(block_format.type.name.lower(), memory.take(n_out, group_bytes), n_out=n_out, n_in=n_in)
    first = 0
    for rows in (piece for tensor in tensors for piece in tensor.pieces()):
        groups = part.data[first : first + -(-len(rows) // GROUP)]
        if issubclass(block_format, QuantizedFormat):
            pack(rows, block_format, groups, n_in=n_in, team=team)
        else:
            pack_floats(rows, groups, n_in=n_in, team=team)
        first += len(groups)
    return part
