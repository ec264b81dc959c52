"""Architectures `olmo2` (OLMo 2 and 3, arXiv 2501.00656) and `olmoe` (arXiv 2409.02060)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights

_PATTERN = 4  # in OLMo 3, every fourth layer has full attention


def load_olmo2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: what the parts give is normed, not what they take."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    full = hyperparameters.attention(rope=hyperparameters.rope(interleaved=False), qk_norm_over_heads=True)
    attention = [full] * n_layer
    if n_swa := hyperparameters.optional_integer("attention.sliding_window"):
        unscaled = hyperparameters.rope(interleaved=False, scaled=False)
        windowed = hyperparameters.attention(rope=unscaled, n_swa=n_swa, qk_norm_over_heads=True)
        attention = [windowed if swa else full for swa in hyperparameters.swa_layers(_PATTERN)]
    ffn = [hyperparameters.integer("feed_forward_length")] * n_layer
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd, qk_norm_eps=config.norm_eps),
        ffn=ffn_by_layer(weights, ffn, n_embd=n_embd, activation=kernels.silu_mul),
        attn_norm=None,
        post_attention_norm="post_attention_norm.weight",
        ffn_norm=None,
        post_ffw_norm="post_ffw_norm.weight",
    )


def load_olmoe(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: experts whose shares don't sum up to 1."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    attention = hyperparameters.attention(rope=hyperparameters.rope(interleaved=False), qk_norm_over_heads=True)
    experts = hyperparameters.experts(n_ff=hyperparameters.integer("feed_forward_length"), normalize=False)
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, [attention] * n_layer, n_embd=n_embd, qk_norm_eps=config.norm_eps),
        ffn=ffn_by_layer(weights, [experts] * n_layer, n_embd=n_embd, activation=kernels.silu_mul),
    )
