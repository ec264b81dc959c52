"""Architecture `nemotron_h`: each block is Mamba-2, attention that knows no positions, or a feed-forward network.

Source: Nemotron-H, arXiv 2504.03624.
"""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import Attention, Mixer
from engine.models.layers.combined import TokenMixer
from engine.models.layers.ffn import SquaredReluFFN
from engine.models.layers.mamba import Mamba2
from engine.models.model import Model
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_nemotron_h(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters)
    n_embd = config.n_embd

    def mixer(layer: int) -> Mixer:
        if n_ff := hyperparameters.optional_integer("feed_forward_length", layer=layer):
            return TokenMixer(SquaredReluFFN.load(weights, layer, n_embd=n_embd, n_ff=n_ff))
        if hyperparameters.optional_integer("attention.head_count_kv", layer=layer):
            attention = hyperparameters.attention(rope=None, layer=layer)
            return Attention.load(weights, layer, attention, None, n_embd=n_embd)
        return Mamba2.load(weights, layer, ssm, n_embd=n_embd, eps=config.norm_eps)

    return load_stack(config, weights, kernels, mixer=mixer, ffn=None)
