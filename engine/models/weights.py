"""The tensors of a model file on their way into a model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.arrays import F32
from engine.errors import FormatError, UnsupportedError, excerpt
from engine.formats.gguf import GGUFFile, TensorInfo
from engine.kernels import Kernels, Matrix
from engine.quants import BLOCK_FORMATS, Tensor, WeightMemory, dequantize, load_matrix

LoadProgress = Callable[[int, int], None]  # bytes done, bytes in all; may raise to cancel
_MOST_CALLS = 1000  # of that, about: a model of many experts is read in tens of thousands of pieces


def constant(array: F32) -> F32:
    """Return an array as one that can't be changed, nor can what it is a view of: see `Kernels.record`."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return array


class TensorReader:
    """The bytes of a tensor, read from its file from the first to the last; it takes their digest meanwhile.

    There is no more memory than for the largest piece that is asked for: a tensor may be larger than all others
    together.
    """

    def __init__(self, gguf: GGUFFile, info: TensorInfo, note: Callable[[int], None]) -> None:
        self._gguf = gguf
        self._info = info
        self._note = note  # called with the number of bytes of each piece that was read
        self._buffer = np.empty(0, np.uint8)
        self._position = 0
        self._digest = xxhash.xxh3_128()

    def __len__(self) -> int:
        return self._info.nbytes

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(len(self))
        assert start == self._position, f"{self._info.name} is read out of order"
        if len(self._buffer) < stop - start:
            self._buffer = np.empty(stop - start, np.uint8)
        piece = self._buffer[: stop - start]
        self._gguf.read_into(piece, self._info.offset + start)
        self._position = stop
        if stop == len(self):
            self._buffer = np.empty(0, np.uint8)  # whoever has the piece keeps the memory for as long as need be
        self._digest.update(piece.data)
        self._note(len(piece))
        return piece

    def digest(self) -> bytes:
        """Return the xxh3-128 digest of the bytes, all of which must have been read."""
        assert self._position == len(self), f"{self._info.name} is not read to its end"
        return self._digest.digest()


class Weights:
    """Hands out each tensor once, in the kernels' layout, and takes the fingerprint meanwhile."""

    def __init__(self, gguf: GGUFFile, kernels: Kernels, progress: LoadProgress | None = None) -> None:
        self._gguf = gguf
        self._kernels = kernels
        self._memory = WeightMemory()
        self._progress = progress
        self._left = dict(gguf.tensors)
        self._names = sorted(self._left)
        self._taken: dict[str, TensorReader] = {}
        self._total = sum(info.nbytes for info in gguf.tensors.values())
        self._done = self._told = 0
        for info in gguf.tensors.values():
            if info.type not in BLOCK_FORMATS:
                raise UnsupportedError(
                    f"The model {gguf.path} has tensors of the type {info.type.name} "
                    f"({excerpt(info.name)}), which is not supported."
                )

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def array(self, name: str, *shape: int) -> F32:
        """Return the tensor `name`, which must have `shape`, as a dense array: norms, biases, small kernels.

        Raises FormatError when it is missing or has another shape.
        """
        tensor = self._pop(name, shape)
        return constant(dequantize(tensor.data, tensor.type, tensor.shape, team=self._kernels.team))

    def matrix(self, rows: Mapping[str, int], n_in: int, *, precise: bool = False) -> Matrix:
        """Return a matrix (n_out, n_in) of the rows of several tensors: one product instead of several.

        `rows` gives each tensor's number of rows; for `precise` see `load_matrix`. Raises FormatError as `array` does.
        """
        tensors = [self._pop(name, (n, n_in)) for name, n in rows.items()]
        return load_matrix(tensors, self._kernels, self._memory, precise=precise)

    def experts(self, rows: Mapping[str, int], n_in: int, n_expert: int) -> tuple[Matrix, ...]:
        """Return a matrix for each expert out of tensors (n_expert, n_out, n_in); see `matrix`."""
        tensors = [self._pop(name, (n_expert, n, n_in)) for name, n in rows.items()]
        experts = zip(*(tensor.parts() for tensor in tensors), strict=True)
        return tuple(load_matrix(expert, self._kernels, self._memory) for expert in experts)

    def embeddings(self, n_vocab: int, n_embd: int) -> tuple[Matrix, Matrix]:
        """Return the embeddings of the tokens and the output matrix, which is the same one where they are tied.

        Rounding the output's activations shows in the logits more than all of a layer's: it is done with more bits.
        """
        tied = "output.weight" not in self
        token_embd = self.matrix({"token_embd.weight": n_vocab}, n_embd, precise=tied)
        return token_embd, token_embd if tied else self.matrix({"output.weight": n_vocab}, n_embd, precise=True)

    def skip(self, prefix: str) -> None:
        """Leave out the tensors whose names begin with `prefix`: parts of the model that are knowingly not run here."""
        for place in range(bisect_left(self._names, prefix), len(self._names)):
            name = self._names[place]
            if not name.startswith(prefix):
                break
            if (info := self._left.pop(name, None)) is not None:
                self._total -= info.nbytes

    def _pop(self, name: str, shape: tuple[int, ...]) -> Tensor:
        info = self._left.pop(name, None)
        if info is None:
            raise FormatError(f"The model {self._gguf.path} lacks the tensor {name}.")
        if _without_outer_ones(info.shape) != _without_outer_ones(shape):
            raise FormatError(
                f"The model {self._gguf.path} has the tensor {name} in the shape {info.shape} instead of {shape}."
            )
        self._taken[name] = taken = TensorReader(self._gguf, info, self._note)
        return Tensor(info.type, shape, taken)

    def _note(self, n_bytes: int) -> None:
        self._done += n_bytes
        is_news = self._done - self._told >= self._total // _MOST_CALLS or self._done == self._total
        if self._progress is not None and is_news:
            self._told = self._done
            self._progress(self._done, self._total)

    def finish(self) -> str:
        """Return the fingerprint of the tensors used: 32 hexadecimal digits over their bytes, types and shapes.

        Raises UnsupportedError when the file has tensors that nothing asked for: a model computed without
        them would be a different one.
        """
        if self._left:
            raise UnsupportedError(
                f"The model {self._gguf.path} has tensors that its architecture does not use here: "
                f"{', '.join(map(excerpt, sorted(self._left)[:3]))}{', …' if len(self._left) > 3 else ''}."
            )
        digest = xxhash.xxh3_128()
        for name in sorted(self._taken):
            info = self._gguf.tensors[name]
            digest.update(f"{name}\0{info.type.name}\0{info.shape}\0".encode())
            digest.update(self._taken[name].digest())
        return digest.hexdigest()


def _without_outer_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return what tells shapes apart: converters write a vector as a matrix of one row, or the other way round."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]
