"""Architectures `qwen3next`, `qwen35` and `qwen35moe`: three gated delta nets to one layer with gated attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.layers import Attention, Mixer, Rope
from engine.models.layers.delta_net import DeltaNet, Projection
from engine.models.model import Model
from engine.models.parts import ffn_by_layer
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights

_INTERVAL = 4  # every fourth layer has attention, where the file doesn't say otherwise


def load_qwen3next(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    ssm = SSMConfig.read(hyperparameters)

    def projection(layer: int) -> Projection:
        in_one = f"blk.{layer}.ssm_in.weight" in weights  # as in the first files of this architecture
        rows = {"ssm_in": ssm.n_channel + ssm.d_inner} if in_one else _qkv_gate(ssm)
        return _by_key_head(ssm, rows | {"ssm_ba": 2 * ssm.dt_rank}, in_one=in_one)

    return _load(hyperparameters, weights, kernels, projection=projection, ffn=_experts(hyperparameters))


def load_qwen35(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    n_ff = hyperparameters.integer("feed_forward_length")
    return _load(hyperparameters, weights, kernels, projection=_by_part(hyperparameters), ffn=n_ff)


def load_qwen35moe(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    experts = _experts(hyperparameters)
    return _load(hyperparameters, weights, kernels, projection=_by_part(hyperparameters), ffn=experts)


def _load(
    hyperparameters: Hyperparameters,
    weights: Weights,
    kernels: Kernels,
    *,
    projection: Callable[[int], Projection],
    ffn: int | ExpertsConfig,
) -> Model:
    config = hyperparameters.config()
    n_predict = hyperparameters.optional_integer("nextn_predict_layers") or 0
    if n_predict >= config.n_layer:
        hyperparameters.refuse("nextn_predict_layers", f"is {n_predict}, of {config.n_layer} layers")
    for layer in range(config.n_layer - n_predict, config.n_layer):
        weights.skip(f"blk.{layer}.")  # it predicts a further token, for speculative decoding
    config = replace(config, n_layer=config.n_layer - n_predict)
    n_embd, eps = config.n_embd, config.norm_eps
    ssm = SSMConfig.read(hyperparameters)
    rope = Rope(hyperparameters.rope(interleaved=False))
    attention = hyperparameters.attention(rope=rope.config, gated=True)
    recurrent = _recurrent_layers(hyperparameters, config.n_layer)

    def mixer(layer: int) -> Mixer:
        if recurrent[layer]:
            return DeltaNet.load(weights, layer, ssm, projection(layer), n_embd=n_embd, eps=eps)
        return Attention.load(weights, layer, attention, rope, n_embd=n_embd, qk_norm_eps=eps)

    return load_stack(
        config,
        weights,
        kernels,
        mixer=mixer,
        ffn=ffn_by_layer(weights, [ffn] * config.n_layer, n_embd=n_embd, activation=kernels.silu_mul),
        ffn_norm="post_attention_norm.weight",
    )


def _recurrent_layers(hyperparameters: Hyperparameters, n_layer: int) -> list[bool]:
    """Return which layers are delta nets."""
    key = "attention.recurrent_layers"
    recurrent = [hyperparameters.optional_integer(key, layer=layer) is not None for layer in range(n_layer)]
    if any(recurrent):
        return recurrent
    interval = hyperparameters.integer("full_attention_interval", _INTERVAL)
    return [(layer + 1) % interval != 0 for layer in range(n_layer)]


def _experts(hyperparameters: Hyperparameters) -> ExpertsConfig:
    return hyperparameters.experts(
        n_ff=hyperparameters.integer("expert_feed_forward_length"),
        n_ff_shared=hyperparameters.integer("expert_shared_feed_forward_length"),
        normalize=True,
    )


def _qkv_gate(ssm: SSMConfig) -> dict[str, int]:
    return {"attn_qkv": ssm.n_channel, "attn_gate": ssm.d_inner}


def _by_part(hyperparameters: Hyperparameters) -> Callable[[int], Projection]:
    """Return the projection of files that have a tensor for each part."""
    ssm = SSMConfig.read(hyperparameters)
    rows = _qkv_gate(ssm) | {"ssm_beta": ssm.dt_rank, "ssm_alpha": ssm.dt_rank}
    return lambda layer: Projection(rows)


def _by_key_head(ssm: SSMConfig, rows: dict[str, int], *, in_one: bool) -> Projection:
    """Return the projection of files that have the beta and the alpha of each key head together.

    So have files with all `in_one` its query, its key, its values and their gates.
    """
    n_qkvz = ssm.n_channel + ssm.d_inner
    qkvz = np.arange(n_qkvz)
    if in_one:
        n_value = ssm.d_inner // ssm.n_group
        parts = np.split(qkvz.reshape(ssm.n_group, -1), np.cumsum([ssm.d_state, ssm.d_state, n_value]), axis=1)
        qkvz = np.concatenate([part.reshape(-1) for part in parts])
    beta_alpha = np.arange(2 * ssm.dt_rank).reshape(ssm.n_group, 2, -1).swapaxes(0, 1).reshape(-1)
    return Projection(rows, order=np.concatenate([qkvz, n_qkvz + beta_alpha]), grouped=True)
