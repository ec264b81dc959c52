"""Architecture `phi3`: Phi-3 and Phi-4 (arXiv 2404.14219), whose long contexts use LongRoPE."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_phi3(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors.

    The window that some files name is not used, as in llama.cpp: their metadata don't describe it rightly.
    """
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    attention = [hyperparameters.attention(rope=hyperparameters.rope(interleaved=False))] * n_layer
    ffn = [hyperparameters.integer("feed_forward_length")] * n_layer
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd),
        ffn=ffn_by_layer(weights, ffn, n_embd=n_embd, activation=kernels.silu_mul),
    )
