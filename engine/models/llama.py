"""Architecture `llama`: Llama 2 and 3, Mistral, SmolLM2, TinyLlama; with experts Mixtral (arXiv 2401.04088)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_llama(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    attention = hyperparameters.attention(rope=hyperparameters.rope(interleaved=True))
    n_ff = hyperparameters.integer("feed_forward_length")
    ffn: int | ExpertsConfig = n_ff
    if hyperparameters.optional_integer("expert_count"):
        ffn = hyperparameters.experts(n_ff=n_ff, normalize=True)
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, [attention] * n_layer, n_embd=n_embd),
        ffn=ffn_by_layer(weights, [ffn] * n_layer, n_embd=n_embd, activation=kernels.silu_mul),
    )
