"""Kinds of memory behind one protocol, composed of what the layers need."""

from engine.memory.layer_memory import AttentionRows, LayerMemory, compose
from engine.memory.memory import Memory
from engine.memory.protocol import MemoryPart, RowChunk
from engine.memory.recurrent import LayerState, RecurrentState

__all__ = [
    "AttentionRows",
    "LayerMemory",
    "LayerState",
    "Memory",
    "MemoryPart",
    "RecurrentState",
    "RowChunk",
    "compose",
]
