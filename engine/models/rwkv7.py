"""Architecture `rwkv7` (arXiv 2503.14456)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import Layer
from engine.models.layers.norm import BiasedLayerNorm, LayerNorm
from engine.models.layers.rwkv import ChannelMix, LowRank, RWKV7Block, StreamEntry, StreamExit, TimeMix, sigmoid
from engine.models.model import Model
from engine.models.weights import Weights

_HEAD_NORM_EPS = 64e-5


def load_rwkv7(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_embd, n_layer = config.n_embd, config.n_layer
    n_ff = hyperparameters.integer("feed_forward_length")
    token_embd, output = weights.embeddings(config.n_vocab, n_embd)
    for name in ("v0", "v1", "v2"):
        weights.skip(f"blk.0.time_mix_{name}.")  # the first layer has no earlier values to mix in

    def norm(name: str) -> BiasedLayerNorm:
        return BiasedLayerNorm.load(weights, name, n_embd, eps=config.norm_eps)

    def channel_mix(layer: int) -> ChannelMix:
        name = f"blk.{layer}.channel_mix"
        return ChannelMix(
            lerp=weights.array(f"{name}_lerp_k.weight", n_embd),
            key=weights.matrix({f"{name}_key.weight": n_ff}, n_embd),
            value=weights.matrix({f"{name}_value.weight": n_embd}, n_ff),
        )

    def block(layer: int) -> Layer:
        return RWKV7Block(
            layer=layer,
            attn_norm=norm(f"blk.{layer}.attn_norm"),
            time_mix=_load_time_mix(hyperparameters, weights, layer),
            attn_norm_2=norm(f"blk.{layer}.attn_norm_2"),
            channel_mix=channel_mix(layer),
        )

    blocks = [block(layer) for layer in range(n_layer)]
    blocks[0] = StreamEntry(norm("token_embd_norm"), blocks[0])
    blocks[-1] = StreamExit(blocks[-1])
    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=blocks,
        output_norm=norm("output_norm"),
        output=output,
    )


def _load_time_mix(hyperparameters: Hyperparameters, weights: Weights, layer: int) -> TimeMix:
    n_embd, head_dim = hyperparameters.integer("embedding_length"), hyperparameters.integer("wkv.head_size")
    if n_embd % head_dim:
        hyperparameters.refuse("wkv.head_size", f"is {head_dim}, which doesn't divide the {n_embd} values")
    name = f"blk.{layer}.time_mix"

    def vector(part: str, kind: str = "weight") -> F32:
        return weights.array(f"{name}_{part}.{kind}", n_embd)

    def low_rank(part: str, key: str, *, bias: bool = True, activation: Callable[[F32], F32] | None = None) -> LowRank:
        rank = hyperparameters.integer(f"attention.{key}_lora_rank")
        return LowRank(
            down=weights.matrix({f"{name}_{part}1.weight": rank}, n_embd),
            up=weights.matrix({f"{name}_{part}2.weight": n_embd}, rank),
            bias=vector(f"{part}0") if bias else None,
            activation=activation,
        )

    return TimeMix(
        n_head=n_embd // head_dim,
        lerp=weights.array(f"{name}_lerp_fused.weight", 6, 1, 1, n_embd)[:, 0, 0],
        receptance=weights.matrix({f"{name}_receptance.weight": n_embd}, n_embd),
        key=weights.matrix({f"{name}_key.weight": n_embd}, n_embd),
        value=weights.matrix({f"{name}_value.weight": n_embd}, n_embd),
        decay=low_rank("w", "decay", activation=np.tanh),
        rate=low_rank("a", "iclr"),
        gate=low_rank("g", "gate", bias=False, activation=sigmoid),
        value_residual=low_rank("v", "value_residual_mix") if layer else None,
        k_k=vector("k_k"),
        k_a=vector("k_a"),
        r_k=vector("r_k").reshape(-1, head_dim),
        norm=LayerNorm.plain(head_dim, eps=_HEAD_NORM_EPS),
        norm_weight=vector("ln"),
        norm_bias=vector("ln", "bias"),
        output=weights.matrix({f"{name}_output.weight": n_embd}, n_embd),
    )
