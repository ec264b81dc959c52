"""Architectures `lfm2` and `lfm2moe`: short convolutions with some attention between them (arXiv 2511.23404)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Gating, Hyperparameters
from engine.models.layers import Attention, Mixer, Rope
from engine.models.layers.short_conv import ShortConv
from engine.models.model import Model
from engine.models.parts import ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_lfm2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    return _load(hyperparameters, weights, kernels, n_dense=hyperparameters.config().n_layer)


def load_lfm2moe(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    n_dense = hyperparameters.optional_integer("leading_dense_block_count") or 0
    return _load(hyperparameters, weights, kernels, n_dense=n_dense)


def _load(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels, *, n_dense: int) -> Model:
    """Build a model whose first `n_dense` blocks have plain feed-forward networks, the others experts."""
    config = hyperparameters.config()
    n_embd = config.n_embd
    width = hyperparameters.integer("shortconv.l_cache")
    rope = Rope(hyperparameters.rope(interleaved=False))
    n_swa = hyperparameters.optional_integer("attention.sliding_window")

    def mixer(layer: int) -> Mixer:
        if hyperparameters.optional_integer("attention.head_count_kv", layer=layer) is None:
            return ShortConv.load(weights, layer, n_embd=n_embd, width=width)
        attention = hyperparameters.attention(rope=rope.config, layer=layer, n_swa=n_swa)
        return Attention.load(weights, layer, attention, rope, n_embd=n_embd, qk_norm_eps=config.norm_eps)

    def ffn(layer: int) -> int | ExpertsConfig:
        if layer < n_dense:
            return hyperparameters.integer("feed_forward_length", layer=layer)
        n_ff = hyperparameters.integer("expert_feed_forward_length", layer=layer)
        return hyperparameters.experts(n_ff=n_ff, normalize=True, gating=Gating.SIGMOID)

    return load_stack(
        config,
        weights,
        kernels,
        mixer=mixer,
        ffn=ffn_by_layer(
            weights, [ffn(layer) for layer in range(config.n_layer)], n_embd=n_embd, activation=kernels.silu_mul
        ),
        output_norm="token_embd_norm.weight",
    )
