"""Gated short convolutions (LFM2, arXiv 2511.23404)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import Matrix
from engine.memory import LayerMemory, LayerState, RecurrentState
from engine.models.layers.ubatch import Ubatch
from engine.models.weights import Weights

_NO_STATE = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ShortConv:
    """A convolution over a few tokens, with a gate before and one behind it."""

    layer: int
    in_proj: Matrix  # (3 * n_embd, n_embd): the gate before, the gate behind, what is convolved
    conv: F32  # (n_embd, width)
    out_proj: Matrix  # (n_embd, n_embd)

    @classmethod
    def load(cls, weights: Weights, layer: int, *, n_embd: int, width: int) -> ShortConv:
        """Take the convolution's tensors of block `layer`."""
        block = f"blk.{layer}.shortconv"
        return cls(
            layer=layer,
            in_proj=weights.matrix({f"{block}.in_proj.weight": 3 * n_embd}, n_embd),
            conv=weights.array(f"{block}.conv.weight", n_embd, width),
            out_proj=weights.matrix({f"{block}.out_proj.weight": n_embd}, n_embd),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        n_channel, width = self.conv.shape
        return (RecurrentState(r=(n_channel, width - 1)),)

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels, n_embd = ubatch.kernels, x.shape[1]
        projected = kernels.matmul(x, self.in_proj)
        before, behind, values = projected[:, :n_embd], projected[:, n_embd:-n_embd], projected[:, -n_embd:]
        mixed, r = kernels.short_conv(kernels.multiply(before, values), ubatch.memory.state(self.layer).r, self.conv)
        ubatch.memory.set_state(self.layer, LayerState(r, _NO_STATE))
        return kernels.matmul(kernels.multiply(behind, mixed), self.out_proj)
