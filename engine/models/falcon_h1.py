"""Architecture `falcon-h1`: attention and a state space side by side in each block (arXiv 2507.22448)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import Attention, Mixer, Rope
from engine.models.layers.combined import ParallelMixers
from engine.models.layers.mamba import Mamba2
from engine.models.model import Model
from engine.models.parts import ffn_by_layer
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_falcon_h1(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters)
    n_embd = config.n_embd
    n_ff = hyperparameters.integer("feed_forward_length")
    rope = Rope(hyperparameters.rope(interleaved=False))
    attention = hyperparameters.attention(rope=rope.config)

    def mixer(layer: int) -> Mixer:
        return ParallelMixers(
            Attention.load(weights, layer, attention, rope, n_embd=n_embd),
            Mamba2.load(weights, layer, ssm, n_embd=n_embd, eps=config.norm_eps),
        )

    return load_stack(
        config,
        weights,
        kernels,
        mixer=mixer,
        ffn=ffn_by_layer(weights, [n_ff] * config.n_layer, n_embd=n_embd, activation=kernels.silu_mul),
        ffn_norm="ffn_norm",  # without “.weight” in the files of this architecture
    )
