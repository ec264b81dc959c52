"""Memory of recurrent layers (convolutions, state spaces, delta rules): a state that every token changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.memory.protocol import MemoryPart, RowChunk


@dataclass(frozen=True)
class RecurrentState:
    """Shapes of what a recurrent layer keeps, in llama.cpp's names: float32, C-contiguous, changed by every token."""

    r: tuple[int, ...]  # the last inputs of a convolution or a token shift
    s: tuple[int, ...] = (0,)  # the state of a state space or a delta rule


class LayerState(NamedTuple):
    """What a recurrent layer keeps, in the shapes of its `RecurrentState`."""

    r: NDArray[np.float32]
    s: NDArray[np.float32]


class RecurrentMemory(MemoryPart):
    """One state per layer, of the shapes that `shapes` gives for the layer's index.

    States are replaced, never changed in place: taking back an append costs a dictionary. A checkpoint is the r of
    all layers in their order, then the s of all: the rows of the recurrent section of llama.cpp's slot files.
    """

    kind: ClassVar[str] = "recurrent"
    rewindable: ClassVar[bool] = False
    row_nbytes = 0

    def __init__(self, shapes: Mapping[int, RecurrentState]) -> None:
        self._shapes = dict(shapes)
        self._clear()

    def _clear(self) -> None:
        self.n_tokens = self._appended = 0
        self._states = {
            layer: LayerState(np.zeros(shapes.r, np.float32), np.zeros(shapes.s, np.float32))
            for layer, shapes in self._shapes.items()
        }
        self._before = self._states

    @property
    def states(self) -> Mapping[int, LayerState]:
        """The present states by layer."""
        return self._states

    def set_states(self, states: Mapping[int, LayerState]) -> None:
        """Replace all states by the ones after the ubatch just appended."""
        self._states = dict(states)

    def state(self, layer: int) -> LayerState:
        """Return the layer's state before the ubatch just appended; read only."""
        return self._before[layer]

    def set_state(self, layer: int, state: LayerState) -> None:
        """Replace the layer's state by the one after the ubatch just appended; the memory keeps `state`."""
        self._states[layer] = state

    def append(self, n: int) -> None:
        self._before = dict(self._states)
        self._appended = self.n_tokens
        self.n_tokens += n

    def reuse_point(self, n: int) -> int:
        if n >= self.n_tokens:
            return self.n_tokens
        return self._appended if n >= self._appended else 0

    def rewind(self, n: int) -> None:
        if n == self.n_tokens:
            return
        if n == self._appended:
            self._states = dict(self._before)
            self.n_tokens = n
        else:
            self._clear()

    def first_row(self, n: int) -> int:
        return n

    def has_rows(self, lo: int, hi: int) -> bool:
        return True

    def export_rows(self, lo: int, hi: int) -> RowChunk:
        return RowChunk(lo, hi, b"")

    def row_values(self, lo: int, hi: int) -> Iterator[F32]:
        return iter(())

    def checkpoint(self) -> bytes:
        states = self._states.values()
        return b"".join(array.tobytes() for array in [*(state.r for state in states), *(state.s for state in states)])

    def restore(self, n: int, rows: Iterable[RowChunk], state: bytes | None) -> None:
        self._clear()
        if any(True for _ in rows):
            raise ValueError("a recurrent memory has no rows")
        values = np.frombuffer(state or b"", np.float32).copy()
        shapes = [*(shapes.r for shapes in self._shapes.values()), *(shapes.s for shapes in self._shapes.values())]
        sizes = [prod(shape) for shape in shapes]
        if len(values) != sum(sizes):
            raise ValueError(f"a state of {len(values)} values instead of {sum(sizes)}")
        if not np.isfinite(values).all():
            raise ValueError("a state is not finite")
        split = np.split(values, np.cumsum(sizes)[:-1])
        arrays = [part.reshape(shape) for part, shape in zip(split, shapes, strict=True)]
        n_layer = len(self._shapes)
        for layer, r, s in zip(self._shapes, arrays[:n_layer], arrays[n_layer:], strict=True):
            self._states[layer] = LayerState(r, s)
        self.n_tokens = self._appended = n
        self._before = dict(self._states)

    @property
    def nbytes(self) -> int:
        return sum(state.r.nbytes + state.s.nbytes for state in self._states.values())
