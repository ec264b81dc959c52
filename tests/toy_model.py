"""A model without weights worth the name, over the real memory: every hidden state depends on every row and state."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.memory import AttentionRows, LayerMemory, Memory, RecurrentState, compose
from engine.memory.recurrent import LayerState

N_VOCAB, N_EMBD, N_SWA = 50, 8, 24

FULL = AttentionRows(1, N_EMBD, N_EMBD)
WINDOW = AttentionRows(1, N_EMBD, N_EMBD, n_swa=N_SWA)
RECURRENT = RecurrentState((N_EMBD,), (40, N_EMBD))  # 1,312 bytes

FAMILIES: dict[str, Sequence[LayerMemory]] = {
    "attention": [FULL],
    "sliding_window": [FULL, WINDOW],
    "recurrent": [RECURRENT],
    "hybrid": [FULL, RECURRENT],
    "hybrid_sliding_window": [WINDOW, RECURRENT],
}


class ToyModel:
    """As much of a model as a slot asks for."""

    def __init__(self, family: str) -> None:
        random = np.random.default_rng(0)
        self._layers = FAMILIES[family]
        self._token_embd = random.standard_normal((N_VOCAB, N_EMBD)).astype(np.float32)
        self.kernels: Any = SimpleNamespace(identity="toy")
        self.config: Any = SimpleNamespace(n_embd=N_EMBD)

    def new_memory(self, kv_type: Any = np.float32) -> Memory:
        return compose([[need] for need in self._layers], np.float32)

    def forward(
        self, token_ids: np.ndarray, memory: Memory, *, between_layers: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        start = memory.n_tokens
        memory.append(len(token_ids))
        x = self._token_embd[token_ids] / (1 + np.arange(start, start + len(token_ids), dtype=np.float32)[:, None])
        for layer, need in enumerate(self._layers):
            between_layers()
            mix = self._recur if isinstance(need, RecurrentState) else self._attend
            x = x + np.float32(0.5) * mix(layer, x, memory, start)
        return np.tanh(x).astype(np.float32)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return hidden @ self._token_embd.T

    def _attend(self, layer: int, x: np.ndarray, memory: Memory, start: int) -> np.ndarray:
        n_swa = self._layers[layer].n_swa or 1 << 30
        k, v, span = memory.extend(layer, x[:, None], 2 * x[:, None])
        rows = (k[: span.end] + v[: span.end])[:, 0].astype(np.float32)
        mixed = []
        for position in range(start, start + len(x)):
            seen = rows[max(0, position - n_swa + 1) - span.start : position + 1 - span.start]
            mixed.append(seen.mean(axis=0, dtype=np.float32))
        return np.array(mixed)

    def _recur(self, layer: int, x: np.ndarray, memory: Memory, start: int) -> np.ndarray:
        state = memory.state(layer)
        mixed = []
        for row in x:
            state = LayerState(np.float32(0.9) * state.r + row, state.s * np.float32(0.99) + row)
            mixed.append(state.r + state.s[0])
        memory.set_state(layer, state)
        return np.array(mixed)
