"""Architecture `cohere2`: Command R7B, parallel blocks of which three in four have a window (arXiv 2504.00698)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import LayerNorm, ParallelBlock
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights

_PATTERN = 4


def load_cohere2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors. Layers with full attention are blind to positions."""
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    n_swa = hyperparameters.integer("attention.sliding_window")
    windowed = hyperparameters.attention(rope=hyperparameters.rope(interleaved=True), n_swa=n_swa)
    full = hyperparameters.attention(rope=None)
    attention = [windowed if swa else full for swa in hyperparameters.swa_layers(_PATTERN)]
    ffn = [hyperparameters.integer("feed_forward_length")] * n_layer
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd),
        ffn=ffn_by_layer(weights, ffn, n_embd=n_embd, activation=kernels.silu_mul),
        ffn_norm=None,
        norm=LayerNorm,
        block=ParallelBlock,
        logit_scale=hyperparameters.number("logit_scale"),
    )
