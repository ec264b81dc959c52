"""Blocks: what a model is a stack of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.arrays import F32
from engine.kernels import Kernels
from engine.memory import LayerMemory
from engine.models.layers.ffn import FeedForward
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Mixer, Ubatch


@dataclass(frozen=True)
class Block:
    """A mixer of tokens, then (in most models) a feed-forward network, each normed before, after, or both."""

    attn_norm: Norm | None
    mixer: Mixer
    ffn_norm: Norm | None
    ffn: FeedForward | None
    post_attention_norm: Norm | None = None
    post_ffw_norm: Norm | None = None
    residual_scale: float = 1.0  # of what each part adds

    @property
    def memory(self) -> Sequence[LayerMemory]:
        """What the block keeps of the tokens seen."""
        return self.mixer.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels, scale = ubatch.kernels, self.residual_scale
        mixed = self.mixer(_normed(kernels, x, self.attn_norm), ubatch)
        x = kernels.add(x, _normed(kernels, mixed, self.post_attention_norm), scale=scale)
        if self.ffn is None:
            return x
        out = self.ffn(kernels, _normed(kernels, x, self.ffn_norm))
        return kernels.add(x, _normed(kernels, out, self.post_ffw_norm), scale=scale)


@dataclass(frozen=True)
class ParallelBlock(Block):
    """A mixer and a feed-forward network side by side, after one norm (GPT-J)."""

    ffn: FeedForward

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels = ubatch.kernels
        normed = _normed(kernels, x, self.attn_norm)
        x = kernels.add(x, self.mixer(normed, ubatch))
        return x if self.ffn is None else kernels.add(x, self.ffn(kernels, normed))


def _normed(kernels: Kernels, x: F32, norm: Norm | None) -> F32:
    return x if norm is None else norm(kernels, x)
