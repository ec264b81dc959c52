"""Architectures `granite` and `granitemoe`: Llama with scales of its parts (muP, arXiv 2203.03466), and experts."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_granite(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    # the key's name is a matter of history: here it says whether there is a rotation at all
    rotated = hyperparameters.flag("rope.scaling.finetuned", True)
    attention = hyperparameters.attention(
        rope=hyperparameters.rope(interleaved=True) if rotated else None,
        scale=hyperparameters.optional_number("attention.scale"),
    )
    n_ff = hyperparameters.integer("feed_forward_length")
    ffn: int | ExpertsConfig = n_ff
    if hyperparameters.optional_integer("expert_count"):
        n_ff_shared = hyperparameters.optional_integer("expert_shared_feed_forward_length")
        ffn = hyperparameters.experts(n_ff=n_ff, normalize=True, n_ff_shared=n_ff_shared)
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, [attention] * n_layer, n_embd=n_embd),
        ffn=ffn_by_layer(weights, [ffn] * n_layer, n_embd=n_embd, activation=kernels.silu_mul),
        embedding_scale=hyperparameters.optional_number("embedding_scale") or 1.0,
        residual_scale=hyperparameters.optional_number("residual_scale") or 1.0,
        logit_scale=1.0 / hyperparameters.number("logit_scale"),
    )
