"""Architectures `qwen2` (arXiv 2407.10671), `qwen3` and `qwen3moe` (arXiv 2505.09388)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_qwen2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: biases on queries, keys and values."""
    n_ff = hyperparameters.integer("feed_forward_length")
    return _load(hyperparameters, weights, kernels, ffn=n_ff, qk_norm=False)


def load_qwen3(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: norms of queries and keys."""
    n_ff = hyperparameters.integer("feed_forward_length")
    return _load(hyperparameters, weights, kernels, ffn=n_ff, qk_norm=True)


def load_qwen3moe(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: norms of queries and keys, and experts."""
    n_ff = hyperparameters.integer("expert_feed_forward_length")
    experts = hyperparameters.experts(n_ff=n_ff, normalize=True)
    return _load(hyperparameters, weights, kernels, ffn=experts, qk_norm=True)


def _load(
    hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels, *, ffn: int | ExpertsConfig, qk_norm: bool
) -> Model:
    config = hyperparameters.config()
    n_layer, n_embd = config.n_layer, config.n_embd
    attention = [hyperparameters.attention(rope=hyperparameters.rope(interleaved=False))] * n_layer
    qk_norm_eps = config.norm_eps if qk_norm else None
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd, qk_norm_eps=qk_norm_eps),
        ffn=ffn_by_layer(weights, [ffn] * n_layer, n_embd=n_embd, activation=kernels.silu_mul),
    )
