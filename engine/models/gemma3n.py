"""Architecture `gemma3n`: a wide stream (AltUp), per-layer embeddings, and late layers that share earlier rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.memory import LayerMemory
from engine.models.config import AttentionConfig, Hyperparameters
from engine.models.layers import Attention, FeedForward, GatedFFN, Layer, Linear, Norm, Ubatch
from engine.models.layers.altup import AltUp, AltUpEntry, AltUpExit, AltUpProjections
from engine.models.layers.ffn import Activation
from engine.models.layers.per_layer import PerLayerGate, PerLayerInputs
from engine.models.model import Model
from engine.models.parts import attention_by_layer, share_rows
from engine.models.weights import Weights

_PATTERN = 5
_N_ALTUP, _N_EMBD_PER_LAYER, _LAUREL_RANK = 4, 256, 64
_N_LAYER_ROWS = 20  # layers with rows of their own
_N_LAYER_SPARSE = 10  # layers whose gates let the highest 5 % pass
_SPARSE_DEVIATIONS = 1.6448533535003662  # the standard normal distribution's 95th percentile


@dataclass(frozen=True)
class Gemma3nBlock:
    """One layer on the wide stream (n_tokens, n_altup, n_embd)."""

    altup: AltUp
    altup_correct_scale: F32  # (n_embd,)
    attn_norm: Norm
    attention: Attention
    post_attention_norm: Norm
    laurel_l: Linear  # n_embd -> rank, the low-rank residual beside the attention
    laurel_r: Linear  # rank -> n_embd
    laurel_post_norm: Norm
    ffn_norm: Norm
    ffn: FeedForward
    post_ffw_norm: Norm
    per_layer: PerLayerGate

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.attention.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        kernels = ubatch.kernels
        predicted = self.altup.predict(kernels, x)
        out = self.altup.correct(kernels, predicted, self._compute(np.ascontiguousarray(predicted[:, 0]), ubatch))
        out[:, 1:] += self.per_layer(out[:, 0] * self.altup_correct_scale, ubatch)[:, None]
        return out

    def _compute(self, x: F32, ubatch: Ubatch) -> F32:
        """Return the first part of the stream (n_tokens, n_embd) after this layer."""
        kernels = ubatch.kernels
        normed = self.attn_norm(kernels, x)
        low_rank = self.laurel_r(kernels, self.laurel_l(kernels, normed))
        laurel = normed + self.laurel_post_norm(kernels, low_rank)
        attended = x + self.post_attention_norm(kernels, self.attention(normed, ubatch))
        x = (attended + laurel) * np.float32(0.5**0.5)
        return x + self.post_ffw_norm(kernels, self.ffn(kernels, self.ffn_norm(kernels, x)))


def load_gemma3n(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_embd, eps, n_layer = config.n_embd, config.norm_eps, config.n_layer
    swa = hyperparameters.swa_layers(_PATTERN)
    n_shared = hyperparameters.optional_integer("attention.shared_kv_layers")
    n_shared = max(0, n_layer - _N_LAYER_ROWS) if n_shared is None else n_shared
    attention = share_rows(hyperparameters, weights, _attention(hyperparameters, swa), n_shared)
    mixer = attention_by_layer(weights, attention, n_embd=n_embd, qk_norm_eps=eps)
    token_embd, output = weights.embeddings(config.n_vocab, n_embd)
    inputs = PerLayerInputs.load(weights, token_embd, n_layer=n_layer, n_embd_per_layer=_N_EMBD_PER_LAYER, eps=eps)
    sparse = _sparse_gelu_mul(kernels)

    def norm(layer: int, name: str) -> Norm:
        return Norm.load(weights, f"blk.{layer}.{name}", n_embd, eps=eps)

    def block(layer: int) -> Layer:
        n_ff = hyperparameters.integer("feed_forward_length", layer=layer)
        activation = sparse if layer < _N_LAYER_SPARSE else kernels.gelu_mul
        return Gemma3nBlock(
            altup=AltUp.load(weights, layer, n_altup=_N_ALTUP, n_embd=n_embd, eps=eps),
            altup_correct_scale=weights.array(f"blk.{layer}.altup_correct_scale.weight", n_embd),
            attn_norm=norm(layer, "attn_norm"),
            attention=mixer(layer),
            post_attention_norm=norm(layer, "post_attention_norm"),
            laurel_l=Linear.load(weights, {f"blk.{layer}.laurel_l": _LAUREL_RANK}, n_embd),
            laurel_r=Linear.load(weights, {f"blk.{layer}.laurel_r": n_embd}, _LAUREL_RANK),
            laurel_post_norm=norm(layer, "laurel_post_norm"),
            ffn_norm=norm(layer, "ffn_norm"),
            ffn=GatedFFN.load(weights, layer, n_embd=n_embd, n_ff=n_ff, activation=activation),
            post_ffw_norm=norm(layer, "post_ffw_norm"),
            per_layer=PerLayerGate.load(weights, layer, inputs),
        )

    projections = AltUpProjections.load(weights, n_altup=_N_ALTUP, n_embd=n_embd)
    blocks = [block(layer) for layer in range(n_layer)]
    blocks[0] = AltUpEntry(projections, blocks[0])
    blocks[-1] = AltUpExit(projections, blocks[-1])
    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=blocks,
        output_norm=Norm.load(weights, "output_norm", n_embd, eps=eps),
        output=output,
        embedding_scale=n_embd**0.5,
        logit_softcap=hyperparameters.optional_number("final_logit_softcapping", 30.0),
    )


def _attention(hyperparameters: Hyperparameters, swa: Sequence[bool]) -> list[AttentionConfig]:
    base = hyperparameters.number("rope.freq_base_swa", 10000.0)
    full = hyperparameters.attention(rope=hyperparameters.rope(interleaved=False), scale=1.0)
    windowed = hyperparameters.attention(
        rope=hyperparameters.rope(interleaved=False, base=base, scaled=False),
        scale=1.0,
        n_swa=hyperparameters.integer("attention.sliding_window"),
    )
    return [replace(windowed if is_swa else full, v_norm=True) for is_swa in swa]


def _sparse_gelu_mul(kernels: Kernels) -> Activation:
    """Return a gate that is closed but for values far above the others of their token."""

    def activate(gate: F32, up: F32) -> F32:
        threshold = gate.mean(axis=1, keepdims=True) + _SPARSE_DEVIATIONS * gate.std(axis=1, ddof=1, keepdims=True)
        return kernels.gelu_mul(np.maximum(gate - threshold, 0), up)

    return activate
