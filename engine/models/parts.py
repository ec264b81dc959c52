"""Attention and feed-forward networks by layer: what plain decoders are made of, for `load_stack`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.models.config import AttentionConfig, ExpertsConfig, Hyperparameters
from engine.models.layers import Attention, FeedForward, GatedFFN, MoE, Rope
from engine.models.layers.ffn import Activation
from engine.models.weights import Weights


def attention_by_layer(
    weights: Weights, attention: Sequence[AttentionConfig], *, n_embd: int, qk_norm_eps: float | None = None
) -> Callable[[int], Attention]:
    """Return what takes the attention tensors of a layer; those of equal rotations share one `Rope`."""
    ropes = {rope: Rope.load(weights, rope) for rope in dict.fromkeys(c.rope for c in attention) if rope is not None}

    def load(layer: int) -> Attention:
        config = attention[layer]
        rope = None if config.rope is None else ropes[config.rope]
        return Attention.load(weights, layer, config, rope, n_embd=n_embd, qk_norm_eps=qk_norm_eps)

    return load


def share_rows(
    hyperparameters: Hyperparameters, weights: Weights, attention: Sequence[AttentionConfig], n_shared: int
) -> list[AttentionConfig]:
    """Let the last `n_shared` layers attend to the rows of the last layer before them with the same window.

    Their own tensors for keys and values, which some files have, are left out. Raises FormatError where there is no
    such layer, or its heads are others.
    """
    n_own = len(attention) - n_shared
    owners = {config.n_swa: layer for layer, config in enumerate(attention[: max(0, n_own)])}

    def shared(layer: int) -> AttentionConfig:
        for name in ("attn_k.", "attn_k_norm.", "attn_v."):
            weights.skip(f"blk.{layer}.{name}")
        config = attention[layer]
        return replace(config, rows_of=owners[config.n_swa])

    for config in attention[max(0, n_own) :]:
        owner = owners.get(config.n_swa)
        if owner is None or _row_shape(attention[owner]) != _row_shape(config):
            hyperparameters.refuse("attention.shared_kv_layers", f"is {n_shared}, but no earlier layer has such rows")
    return [*attention[:n_own], *map(shared, range(n_own, len(attention)))]


def _row_shape(config: AttentionConfig) -> tuple[int, int, int]:
    return config.n_head_kv, config.head_dim_k, config.head_dim_v


def ffn_by_layer(
    weights: Weights, ffn: Sequence[int | ExpertsConfig], *, n_embd: int, activation: Activation
) -> Callable[[int], FeedForward]:
    """Return what takes the feed-forward tensors of a layer: `ffn` gives the n_ff of each, or its experts."""

    def load(layer: int) -> FeedForward:
        config = ffn[layer]
        if isinstance(config, ExpertsConfig):
            return MoE.load(weights, layer, config, n_embd=n_embd, activation=activation)
        return GatedFFN.load(weights, layer, n_embd=n_embd, n_ff=config, activation=activation)

    return load
