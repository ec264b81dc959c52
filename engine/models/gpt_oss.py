"""Architecture `gpt-oss`: experts, every other layer with a window, and attention sinks (arXiv 2508.10925)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Gating, Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights

_PATTERN = 2


def load_gpt_oss(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    rope = hyperparameters.rope(interleaved=False)
    base = hyperparameters.number("rope.freq_base_swa", rope.base)
    full = hyperparameters.attention(rope=rope)
    windowed = hyperparameters.attention(
        rope=hyperparameters.rope(interleaved=False, base=base),
        n_swa=hyperparameters.integer("attention.sliding_window"),
    )
    attention = [windowed if swa else full for swa in hyperparameters.swa_layers(_PATTERN)]
    experts = hyperparameters.experts(
        n_ff=hyperparameters.integer("expert_feed_forward_length"),
        normalize=False,
        gating=Gating.SOFTMAX_OF_CHOSEN,
    )
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd),
        ffn=ffn_by_layer(weights, [experts] * n_layer, n_embd=n_embd, activation=kernels.clamped_swiglu),
        ffn_norm="post_attention_norm.weight",
    )
