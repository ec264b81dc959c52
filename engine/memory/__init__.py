"""Kinds of memory behind one protocol, composed per layer."""

from engine.memory.attention import AttentionMemory, FullAttentionMemory, SlidingWindowMemory
from engine.memory.kv_rows import LayerShape
from engine.memory.memory import Memory
from engine.memory.protocol import KVRows, MemoryPart, RowChunk
from engine.memory.recurrent import RecurrentMemory

__all__ = [
    "AttentionMemory",
    "FullAttentionMemory",
    "KVRows",
    "LayerShape",
    "Memory",
    "MemoryPart",
    "RecurrentMemory",
    "RowChunk",
    "SlidingWindowMemory",
]
