"""What layers ask of the memory, and the memory made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from engine.memory.attention import AttentionMemory, FullAttentionMemory, SlidingWindowMemory
from engine.memory.kv_rows import LayerShape
from engine.memory.memory import Memory
from engine.memory.recurrent import RecurrentMemory, RecurrentState


@dataclass(frozen=True)
class AttentionRows:
    """A K and a V row of each token, of all of them or (`n_swa`) of the last ones."""

    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    n_swa: int | None = None


LayerMemory = AttentionRows | RecurrentState


def compose(layers: Sequence[Sequence[LayerMemory]], kv_type: DTypeLike) -> Memory:
    """Return an empty memory with what each layer needs, K/V rows in `kv_type`.

    A layer may need nothing, rows, a state, or one of each.
    """
    rows: dict[int | None, list[LayerShape]] = {}
    states: dict[int, RecurrentState] = {}
    for layer, needs in enumerate(layers):
        for need in needs:
            match need:
                case AttentionRows(n_head_kv, head_dim_k, head_dim_v, n_swa):
                    rows.setdefault(n_swa, []).append(LayerShape(layer, n_head_kv, head_dim_k, head_dim_v))
                case RecurrentState():
                    states[layer] = need
    attention: list[AttentionMemory] = [
        FullAttentionMemory(shapes, kv_type) if n_swa is None else SlidingWindowMemory(shapes, kv_type, n_swa=n_swa)
        for n_swa, shapes in rows.items()
    ]
    return Memory(attention, RecurrentMemory(states) if states else None)
