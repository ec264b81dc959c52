"""Forward passes of single tokens, which are all alike: recorded once for each memory, then repeated without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

from engine.arrays import F32
from engine.kernels.interface import Repeat
from engine.memory import LayerState, Memory
from engine.models.layers import Ubatch
from engine.models.layers.rope import Rope


class Evaluate(Protocol):
    """What evaluates the embeddings x (n_tokens, n_embd) of a ubatch; `between_layers` may raise to cancel."""

    def __call__(self, x: F32, ubatch: Ubatch, between_layers: Callable[[], None]) -> F32: ...


class SingleTokens:
    """Evaluates ubatches of one token.

    Between the operations of a small model, Python takes as long as the operations do. What differs from one token to
    the next is few numbers: the embedding, the token's id, the angles of its position, which rows it sees. They are
    kept where the recorded operations find them.
    """

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[Memory, _Step] = WeakKeyDictionary()
        self._ropes: tuple[Rope, ...] | None = None  # that the layers ask for; unknown before the first pass

    def evaluate(self, evaluate: Evaluate, x: F32, ubatch: Ubatch, between_layers: Callable[[], None]) -> F32:
        """Return the hidden state (1, n_embd) for the embedding x of the token in a ubatch; `evaluate` computes it.

        That is a model's: kept here, it would keep the model, which keeps this.
        """
        if self._ropes is None:
            hidden = evaluate(x, ubatch, between_layers)
            self._ropes = tuple(ubatch.tables)
            return hidden
        step = self._steps.get(ubatch.memory)
        if step is None or step.generation != ubatch.memory.generation:
            self._steps[ubatch.memory] = step = _Step(x, ubatch, self._ropes)
        else:
            step.set_inputs(x, ubatch)
        if step.repeats_with(ubatch.memory):
            between_layers()
            return step.repeat(ubatch.memory)
        if step.can_be_recorded:
            return step.record(evaluate, ubatch, between_layers)
        return evaluate(x, ubatch, between_layers)


class _Step:
    """The pass of one token, with memory for what it depends on."""

    def __init__(self, x: F32, ubatch: Ubatch, ropes: Iterable[Rope]) -> None:
        self.generation = ubatch.memory.generation
        self.can_be_recorded = True
        self._x = x
        self._token_ids = ubatch.token_ids.copy()
        self._tables = {rope: ubatch.angles(rope) for rope in ropes}
        self._hidden: F32 | None = None
        self._repeat: Repeat | None = None
        self._before: Mapping[int, LayerState] = {}  # the states that the last pass read, and those that it left
        self._after: Mapping[int, LayerState] = {}

    def set_inputs(self, x: F32, ubatch: Ubatch) -> None:
        self._x[...] = x
        self._token_ids[...] = ubatch.token_ids
        for rope, table in self._tables.items():
            now = ubatch.angles(rope)
            table.cos[...], table.sin[...] = now.cos, now.sin

    def repeats_with(self, memory: Memory) -> bool:
        """Whether the pass was recorded, and for the states that the memory has now."""
        if self._repeat is None:
            return False
        states = memory.states
        return all(states[layer] is state for layer, state in self._after.items())

    def record(self, evaluate: Evaluate, ubatch: Ubatch, between_layers: Callable[[], None]) -> F32:
        """Evaluate, so that from now on this can be repeated if it can at all."""
        own = Ubatch(ubatch.kernels, ubatch.memory, ubatch.start, self._token_ids, self._tables)
        before = dict(ubatch.memory.states)
        inputs = [self._x, self._token_ids, *(a for t in self._tables.values() for a in (t.cos, t.sin))]
        hidden, repeat = ubatch.kernels.record(lambda: evaluate(self._x, own, between_layers), inputs=inputs)
        after = dict(ubatch.memory.states)
        self._hidden, self._repeat, self._before, self._after = hidden, repeat, before, after
        self.can_be_recorded = repeat is not None
        return hidden.copy()

    def repeat(self, memory: Memory) -> F32:
        repeat, self._repeat = self._repeat, None  # where an error leaves its states in disorder, it is not done again
        assert repeat is not None
        assert self._hidden is not None
        repeat()
        self._before, self._after = self._after, self._before
        self._repeat = repeat
        memory.set_states(self._after)
        return self._hidden.copy()
