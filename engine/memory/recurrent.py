"""Memory of recurrent layers (convolutions, state spaces, delta rules): a state that every token changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.memory.protocol import MemoryPart, RowChunk

State = NDArray[np.float32]


class RecurrentMemory(MemoryPart):
    """One float32 state per layer, of the shape that `shapes` gives for the layer's index.

    States are replaced, never changed in place: taking back an append costs a dictionary.
    """

    kind: ClassVar[str] = "recurrent"
    rewindable: ClassVar[bool] = False
    row_nbytes = 0

    def __init__(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        self._clear()

    def _clear(self) -> None:
        self.n_tokens = self._appended = 0
        self._states: dict[int, State] = {layer: np.zeros(shape, np.float32) for layer, shape in self._shapes.items()}
        self._before = self._states

    def state(self, layer: int) -> State:
        """Return the layer's state before the ubatch just appended; read only."""
        return self._before[layer]

    def set_state(self, layer: int, state: State) -> None:
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
        if n == 0:
            self._clear()
        elif n < self.n_tokens:
            self._states = dict(self._before)
            self.n_tokens = n

    def first_row(self, n: int) -> int:
        return n

    def has_rows(self, lo: int, hi: int) -> bool:
        return True

    def export_rows(self, lo: int, hi: int) -> RowChunk:
        return RowChunk(lo, hi, b"")

    def checkpoint(self) -> bytes:
        return b"".join(self._states[layer].tobytes() for layer in self._shapes)

    def restore(self, n: int, rows: Iterable[RowChunk], state: bytes | None) -> None:
        self._clear()
        values = np.frombuffer(state or b"", np.float32)
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        if len(values) != sum(sizes):
            raise ValueError(f"a state of {len(values)} values instead of {sum(sizes)}")
        split = np.split(values, np.cumsum(sizes)[:-1])
        for (layer, shape), layer_values in zip(self._shapes.items(), split, strict=True):
            self._states[layer] = layer_values.reshape(shape)
        self.n_tokens = self._appended = n
        self._before = dict(self._states)

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())
