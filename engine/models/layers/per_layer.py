"""Per-layer embeddings: each layer sees the token ids again (Gemma 3n)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import Matrix
from engine.models.layers.linear import Linear
from engine.models.layers.norm import Norm
from engine.models.layers.ubatch import Ubatch
from engine.models.weights import Weights, constant


@dataclass(frozen=True, eq=False)
class PerLayerInputs:
    """What the layers see of a ubatch's tokens, (n_tokens, n_layer, n_embd_per_layer)."""

    n_layer: int
    token_embd: Matrix  # (n_vocab, n_embd)
    per_layer_token_embd: Matrix  # (n_vocab, n_layer * n_embd_per_layer)
    per_layer_model_proj: Linear  # n_embd -> n_layer * n_embd_per_layer
    per_layer_proj_norm: Norm  # its weights times sqrt(1/2): the result is a mean of two

    @classmethod
    def load(
        cls, weights: Weights, token_embd: Matrix, *, n_layer: int, n_embd_per_layer: int, eps: float
    ) -> PerLayerInputs:
        """Take the tensors that the layers share."""
        n_vocab, n_embd = token_embd.shape
        size = n_layer * n_embd_per_layer
        norm = weights.array("per_layer_proj_norm.weight", n_embd_per_layer)
        return cls(
            n_layer=n_layer,
            token_embd=token_embd,
            per_layer_token_embd=weights.matrix({"per_layer_token_embd.weight": n_vocab}, size),
            per_layer_model_proj=Linear.load(weights, {"per_layer_model_proj": size}, n_embd),
            per_layer_proj_norm=Norm(constant(norm * np.float32(0.5**0.5)), eps),
        )

    def __call__(self, ubatch: Ubatch) -> F32:
        kernels, n = ubatch.kernels, ubatch.n_tokens
        x = kernels.take_rows(self.token_embd, ubatch.token_ids)
        projected = self.per_layer_model_proj(kernels, x).reshape(n, self.n_layer, -1)
        normed = self.per_layer_proj_norm(kernels, projected)
        own = kernels.take_rows(self.per_layer_token_embd, ubatch.token_ids)
        scale = (0.5 * projected.shape[2]) ** 0.5
        return kernels.add(normed.reshape(n, -1), own, scale=scale).reshape(normed.shape)


@dataclass(frozen=True)
class PerLayerGate:
    """What a layer adds to the stream: its own input of each token, gated by the stream."""

    layer: int
    inputs: PerLayerInputs
    inp_gate: Linear  # n_embd -> n_embd_per_layer
    proj: Linear  # n_embd_per_layer -> n_embd
    post_norm: Norm

    @classmethod
    def load(cls, weights: Weights, layer: int, inputs: PerLayerInputs) -> PerLayerGate:
        """Take the tensors of block `layer`."""
        block, norm = f"blk.{layer}", inputs.per_layer_proj_norm
        n_embd, n_embd_per_layer = inputs.token_embd.shape[1], len(norm.weight)
        return cls(
            layer,
            inputs,
            Linear.load(weights, {f"{block}.inp_gate": n_embd_per_layer}, n_embd),
            Linear.load(weights, {f"{block}.proj": n_embd}, n_embd_per_layer),
            Norm.load(weights, f"{block}.post_norm", n_embd, eps=norm.eps),
        )

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels = ubatch.kernels
        gate = self.inp_gate(kernels, x)
        gated = kernels.gelu_mul(gate, np.ascontiguousarray(ubatch.once(self.inputs)[:, self.layer]))
        return self.post_norm(kernels, self.proj(kernels, gated))
