"""The memory of one slot: a composition of parts, one for each kind of layer that the model has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.memory.attention import AttentionMemory
from engine.memory.protocol import KVRows, MemoryPart, RowChunk
from engine.memory.recurrent import RecurrentMemory, State


class Memory:
    """What a model keeps of the tokens of one conversation. Passed to each forward pass; models keep no state.

    At most one of the parts has a state beside its rows.
    """

    def __init__(self, parts: Sequence[MemoryPart], *, layers: Mapping[int, MemoryPart]) -> None:
        self.parts = tuple(parts)
        self._layers = dict(layers)

    @property
    def n_tokens(self) -> int:
        """Number of tokens remembered."""
        return self.parts[0].n_tokens

    @property
    def rewindable(self) -> bool:
        """Whether it can be cut back to every earlier length."""
        return all(part.rewindable for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of main memory held."""
        return sum(part.nbytes for part in self.parts)

    def append(self, n: int) -> None:
        """Make room for the n tokens of a ubatch; the layers fill it during the forward pass."""
        for part in self.parts:
            part.append(n)

    def extend(self, layer: int, k: KVRows, v: KVRows) -> tuple[KVRows, KVRows, int]:
        """Keep an attention layer's new rows; return all that it sees: see AttentionMemory.extend."""
        part = self._layers[layer]
        assert isinstance(part, AttentionMemory)
        return part.extend(layer, k, v)

    def state(self, layer: int) -> State:
        """Return a recurrent layer's state before the ubatch; read only."""
        return self._recurrent(layer).state(layer)

    def set_state(self, layer: int, state: State) -> None:
        """Replace a recurrent layer's state by the one after the ubatch."""
        self._recurrent(layer).set_state(layer, state)

    def reuse_point(self, n: int) -> int:
        """Return the largest length up to n to which all parts can return without a checkpoint."""
        while (agreed := min(part.reuse_point(n) for part in self.parts)) != n:
            n = agreed
        return n

    def rewind(self, n: int) -> None:
        """Forget the tokens from position n on. Requires reuse_point(n) == n."""
        for part in self.parts:
            part.rewind(n)

    def checkpoint(self) -> bytes | None:
        """Return the state that a checkpoint at the present length must hold, None if rows are enough."""
        states = [state for part in self.parts if (state := part.checkpoint()) is not None]
        return states[0] if states else None

    def restore(self, n: int, rows: Mapping[str, Iterable[RowChunk]], state: bytes | None) -> None:
        """Become n tokens long from stored rows, by kind of part, and the state of a checkpoint at n.

        Raises ValueError when they do not fit; the memory is empty then.
        """
        try:
            for part in self.parts:
                part.restore(n, rows.get(part.kind, ()), None if part.row_nbytes else state)
        except ValueError:
            self.rewind(0)
            raise

    def _recurrent(self, layer: int) -> RecurrentMemory:
        part = self._layers[layer]
        assert isinstance(part, RecurrentMemory)
        return part
