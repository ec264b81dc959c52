"""Architecture `granitehybrid`: Mamba-2 with some attention between, plain feed-forward networks or experts."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.layers import Attention, Mixer, Rope
from engine.models.layers.mamba import Mamba2
from engine.models.model import Model
from engine.models.parts import ffn_by_layer
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_granitehybrid(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters)
    n_embd = config.n_embd
    n_ff = hyperparameters.integer("feed_forward_length")
    ffn: int | ExpertsConfig = n_ff
    if hyperparameters.optional_integer("expert_count"):
        n_ff_shared = hyperparameters.optional_integer("expert_shared_feed_forward_length")
        ffn = hyperparameters.experts(n_ff=n_ff, normalize=True, n_ff_shared=n_ff_shared)
    # the key's name is a matter of history: here it says whether there is a rotation at all
    rotated = hyperparameters.flag("rope.scaling.finetuned", True)
    rope = Rope.load(weights, hyperparameters.rope(interleaved=True)) if rotated else None
    scale = hyperparameters.optional_number("attention.scale")

    def mixer(layer: int) -> Mixer:
        if hyperparameters.optional_integer("attention.head_count_kv", layer=layer) is None:
            return Mamba2.load(weights, layer, ssm, n_embd=n_embd, eps=config.norm_eps)
        attention = hyperparameters.attention(rope=rope.config if rope else None, layer=layer, scale=scale)
        return Attention.load(weights, layer, attention, rope, n_embd=n_embd)

    return load_stack(
        config,
        weights,
        kernels,
        mixer=mixer,
        ffn=ffn_by_layer(weights, [ffn] * config.n_layer, n_embd=n_embd, activation=kernels.silu_mul),
        embedding_scale=hyperparameters.optional_number("embedding_scale") or 1.0,
        residual_scale=hyperparameters.optional_number("residual_scale") or 1.0,
        logit_scale=1.0 / (hyperparameters.optional_number("logit_scale") or 1.0),
    )
