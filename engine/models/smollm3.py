"""Architecture `smollm3`: Llama with every fourth layer blind to positions (arXiv 2501.18795)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights

_PATTERN = 4


def load_smollm3(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    seeing = hyperparameters.attention(rope=hyperparameters.rope(interleaved=True))
    blind = hyperparameters.attention(rope=None)
    attention = [blind if layer % _PATTERN == _PATTERN - 1 else seeing for layer in range(n_layer)]
    ffn = [hyperparameters.integer("feed_forward_length")] * n_layer
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd),
        ffn=ffn_by_layer(weights, ffn, n_embd=n_embd, activation=kernels.silu_mul),
    )
