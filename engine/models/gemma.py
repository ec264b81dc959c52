"""Architectures `gemma2` (arXiv 2408.00118) and `gemma3` (arXiv 2503.19786): some layers with a sliding window."""

from __future__ import annotations

from collections.abc import Sequence

from engine.kernels import Kernels
from engine.models.config import AttentionConfig, Hyperparameters
from engine.models.model import Model
from engine.models.parts import attention_by_layer, ffn_by_layer
from engine.models.stack import load_stack
from engine.models.weights import Weights

_GEMMA2_PATTERN, _GEMMA3_PATTERN = 2, 6  # one in so many layers has full attention
_GEMMA2_27B, _GEMMA3_27B = 46, 62  # layers of the sizes that scale their queries by n_embd / n_head, not by their size


def load_gemma2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: the scores of attention and the logits are capped."""
    rope = hyperparameters.rope(interleaved=False)
    base = hyperparameters.number("rope.freq_base_swa", rope.base)
    scale = _scale(hyperparameters, _GEMMA2_27B)
    softcap = hyperparameters.optional_number("attn_logit_softcapping", 50.0)
    full = hyperparameters.attention(rope=rope, scale=scale, softcap=softcap)
    windowed = hyperparameters.attention(
        rope=hyperparameters.rope(interleaved=False, base=base),
        scale=scale,
        n_swa=hyperparameters.integer("attention.sliding_window", 4096),
        softcap=softcap,
    )
    attention = [windowed if swa else full for swa in hyperparameters.swa_layers(_GEMMA2_PATTERN)]
    logit_softcap = hyperparameters.optional_number("final_logit_softcapping", 30.0)
    return _load(hyperparameters, weights, kernels, attention, qk_norm=False, logit_softcap=logit_softcap)


def load_gemma3(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors: queries and keys are normed."""
    scale = _scale(hyperparameters, _GEMMA3_27B)
    full = hyperparameters.attention(rope=hyperparameters.rope(interleaved=False), scale=scale)
    attention: Sequence[AttentionConfig] = [full] * hyperparameters.n_layer
    if n_swa := hyperparameters.optional_integer("attention.sliding_window"):
        base = hyperparameters.number("rope.freq_base_swa", 10000.0)
        rope = hyperparameters.rope(interleaved=False, base=base, scaled=False)
        windowed = hyperparameters.attention(rope=rope, scale=scale, n_swa=n_swa)
        attention = [windowed if swa else full for swa in hyperparameters.swa_layers(_GEMMA3_PATTERN)]
    logit_softcap = hyperparameters.optional_number("final_logit_softcapping")
    return _load(hyperparameters, weights, kernels, attention, qk_norm=True, logit_softcap=logit_softcap)


def _scale(hyperparameters: Hyperparameters, n_layer_27b: int) -> float | None:
    if hyperparameters.n_layer != n_layer_27b:
        return None
    n_embd, n_head = hyperparameters.integer("embedding_length"), hyperparameters.integer("attention.head_count")
    return float((n_embd / n_head) ** -0.5)


def _load(
    hyperparameters: Hyperparameters,
    weights: Weights,
    kernels: Kernels,
    attention: Sequence[AttentionConfig],
    *,
    qk_norm: bool,
    logit_softcap: float | None,
) -> Model:
    config = hyperparameters.config()
    n_embd = config.n_embd
    ffn = [hyperparameters.integer("feed_forward_length")] * config.n_layer
    qk_norm_eps = config.norm_eps if qk_norm else None
    return load_stack(
        config,
        weights,
        kernels,
        mixer=attention_by_layer(weights, attention, n_embd=n_embd, qk_norm_eps=qk_norm_eps),
        ffn=ffn_by_layer(weights, ffn, n_embd=n_embd, activation=kernels.gelu_mul),
        post_attention_norm="post_attention_norm.weight",
        post_ffw_norm="post_ffw_norm.weight",
        embedding_scale=n_embd**0.5,
        logit_softcap=logit_softcap,
    )
