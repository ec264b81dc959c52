"""The layers that architectures are made of. Immutable after loading; all state is in the memory passed in."""

from engine.models.layers.attention import Attention
from engine.models.layers.block import Block, ParallelBlock
from engine.models.layers.ffn import FeedForward, GatedFFN
from engine.models.layers.linear import Linear
from engine.models.layers.moe import MoE
from engine.models.layers.norm import LayerNorm, Norm
from engine.models.layers.rope import Rope
from engine.models.layers.ubatch import Layer, Mixer, Ubatch

__all__ = [
    "Attention",
    "Block",
    "FeedForward",
    "GatedFFN",
    "Layer",
    "LayerNorm",
    "Linear",
    "Mixer",
    "MoE",
    "Norm",
    "ParallelBlock",
    "Rope",
    "Ubatch",
]
