"""Architecture `jamba`: Mamba with some attention that knows no positions, and some experts (arXiv 2403.19887)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.layers import Attention, Mixer, Norm
from engine.models.layers.mamba import Mamba
from engine.models.model import Model
from engine.models.parts import ffn_by_layer
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_jamba(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters, in_groups=False)
    n_embd, eps = config.n_embd, config.norm_eps
    n_ff = hyperparameters.integer("feed_forward_length")

    def mixer(layer: int) -> Mixer:
        if hyperparameters.optional_integer("attention.head_count_kv", layer=layer) is not None:
            attention = hyperparameters.attention(rope=None, layer=layer)
            return Attention.load(weights, layer, attention, None, n_embd=n_embd)
        block = f"blk.{layer}"
        norms = (
            Norm.load(weights, f"{block}.ssm_dt_norm", ssm.dt_rank, eps=eps),
            Norm.load(weights, f"{block}.ssm_b_norm", ssm.d_state, eps=eps),
            Norm.load(weights, f"{block}.ssm_c_norm", ssm.d_state, eps=eps),
        )
        return Mamba.load(weights, layer, ssm, n_embd=n_embd, norms=norms)

    def ffn(layer: int) -> int | ExpertsConfig:
        routed = f"blk.{layer}.ffn_gate_inp.weight" in weights
        return hyperparameters.experts(n_ff=n_ff, normalize=False) if routed else n_ff

    return load_stack(
        config,
        weights,
        kernels,
        mixer=mixer,
        ffn=ffn_by_layer(
            weights, [ffn(layer) for layer in range(config.n_layer)], n_embd=n_embd, activation=kernels.silu_mul
        ),
    )
