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
from engine.quants.blocks import BLOCK_FORMATS, QuantizedFormat
from engine.quants.dequantize import dequantize
from engine.quants.packing import WeightMemory, pack, pack_floats


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file has it; the last axis of `shape` is contiguous."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # (n_bytes,)

    def part(self, index: int) -> Tensor:
        """Return the tensor at an index of the first axis."""
        return Tensor(self.type, self.shape[1:], self.data.reshape(self.shape[0], -1)[index])


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
    shape = n_out, n_in
    data = np.concatenate([tensor.data for tensor in tensors]) if len(tensors) > 1 else tensors[0].data
    block_format = BLOCK_FORMATS[tensors[0].type]
    if issubclass(block_format, QuantizedFormat):
        packed = pack(data, block_format, shape, team=team, memory=memory)
        return Part(block_format.layout, packed, n_out=n_out, n_in=n_in, precise=precise)
    packed = pack_floats(data, shape, team=team, memory=memory)
    return Part(block_format.type.name.lower(), packed, n_out=n_out, n_in=n_in)
