"""The memory of one slot: a composition of parts, one for each kind of layer that the model has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.arrays import F32
from engine.kernels.kv_types import KVRows, RowSpan, store_rows
from engine.memory.attention import AttentionMemory, StoreRows
from engine.memory.protocol import MemoryPart, RowChunk
from engine.memory.recurrent import LayerState, RecurrentMemory


class Memory:
    """What a model keeps of the tokens of one conversation. Passed to each forward pass; models keep no state.

    At most one of the parts has a state beside its rows.
    """

    def __init__(self, attention: Sequence[AttentionMemory], recurrent: RecurrentMemory | None = None) -> None:
        self.parts: tuple[MemoryPart, ...] = (*attention, *([recurrent] if recurrent else []))
        self._attention_parts = tuple(attention)
        self._attention = {layer: part for part in attention for layer in part.layers}
        self._recurrent = recurrent

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
        """Make room for the n tokens of a ubatch; the layers fill it during the forward pass.

        Where this or the pass fails, `rewind` to the length before takes back what was done of it.
        """
        for part in self.parts:
            part.append(n)

    def extend(self, layer: int, k: F32, v: F32, store: StoreRows = store_rows) -> tuple[KVRows, KVRows, RowSpan]:
        """Keep an attention layer's new rows; return all that it sees: see AttentionMemory.extend."""
        return self._attention[layer].extend(layer, k, v, store)

    def rows(self, layer: int) -> tuple[KVRows, KVRows, RowSpan]:
        """Return what `extend` returned for a layer in this ubatch, to another layer that shares its rows."""
        return self._attention[layer].rows(layer)

    def state(self, layer: int) -> LayerState:
        """Return a recurrent layer's state before the ubatch; read only."""
        assert self._recurrent is not None
        return self._recurrent.state(layer)

    def set_state(self, layer: int, state: LayerState) -> None:
        """Replace a recurrent layer's state by the one after the ubatch."""
        assert self._recurrent is not None
        self._recurrent.set_state(layer, state)

    @property
    def states(self) -> Mapping[int, LayerState]:
        """The present states of the recurrent layers."""
        return {} if self._recurrent is None else self._recurrent.states

    def set_states(self, states: Mapping[int, LayerState]) -> None:
        """Replace them all by the ones after the ubatch."""
        if self._recurrent is not None:
            self._recurrent.set_states(states)

    @property
    def generation(self) -> int:
        """Counts how often rows have moved to other memory."""
        return sum(part.generation for part in self._attention_parts)

    def reuse_point(self, n: int) -> int:
        """Return the largest length up to n to which all parts can return without a checkpoint."""
        while (agreed := min(part.reuse_point(n) for part in self.parts)) != n:
            n = agreed
        return n

    def rewind(self, n: int) -> None:
        """Forget the tokens from position n on. Requires reuse_point(n) == n."""
        for part in self.parts:
            part.rewind(n)

    def reinstate(self, n: int, rows: Mapping[str, RowChunk]) -> None:
        """Be n tokens long again after a `rewind`, with these rows, by kind of part, in place of those computed since.

        Requires that the memory is `rewindable`, and that no others were computed.
        """
        assert self.rewindable
        for part in self._attention_parts:
            part.reinstate(n, rows[part.kind])

    def checkpoint(self) -> bytes | None:
        """Return the state that a checkpoint at the present length must hold, None if rows are enough."""
        states = [state for part in self.parts if (state := part.checkpoint()) is not None]
        return states[0] if states else None

    def restore(self, n: int, rows: Mapping[str, Iterable[RowChunk]], state: bytes | None) -> None:
        """Become n tokens long from stored rows, by kind of part, and the state of a checkpoint at n.

        Raises ValueError when they do not fit or are not finite; after any error the memory is empty.
        """
        try:
            for part in self.parts:
                part.restore(n, rows.get(part.kind, ()), None if part.row_nbytes else state)
        except BaseException:
            self.rewind(0)
            raise
