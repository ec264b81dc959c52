"""What the metadata of a model may say: the range of each number, by its key without the architecture.

A model file comes from anywhere. Within these ranges nothing that is computed from a number overflows, or takes more
memory or time than the tensors that belong to it; real models are far from every limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`; NaN is none of them."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {_shown(self.low)} to {_shown(self.high)}"


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


_LAYERS = Range(1, 1 << 10)
_WIDTH = Range(1, 1 << 17)  # values of a token, anywhere between two layers or inside of one
_HEADS = Range(1, 1 << 14)
_HEAD_SIZE = Range(1, 1 << 12)
_ROTATED = Range(2, 1 << 12)
_EXPERTS = Range(1, 1 << 12)
_CONVOLVED = Range(1, 1 << 8)
_TOKENS = Range(1, (1 << 31) - 1)
_EPSILON = Range(0.0, 1.0)
_BASE = Range(1.01, 1e30)
_FACTOR = Range(1e-6, 1e6)

MAX_WIDTH = int(_WIDTH.high)
"""What products of numbers must not exceed that give a number of values as well."""

RANGES: Mapping[str, Range] = {
    "block_count": _LAYERS,
    "context_length": _TOKENS,
    "embedding_length": _WIDTH,
    "embedding_length_per_layer_input": Range(1, 1 << 10),  # of each layer, all of which are computed at once
    "feed_forward_length": _WIDTH,
    "leading_dense_block_count": _LAYERS,
    "nextn_predict_layers": _LAYERS,
    "full_attention_interval": _LAYERS,
    "expert_count": _EXPERTS,
    "expert_used_count": _EXPERTS,
    "expert_feed_forward_length": _WIDTH,
    "expert_shared_feed_forward_length": _WIDTH,
    "expert_gating_func": Range(1, 255),
    "expert_weights_scale": _FACTOR,
    "attention.head_count": _HEADS,
    "attention.head_count_kv": _HEADS,
    "attention.key_length": _HEAD_SIZE,
    "attention.key_length_swa": _HEAD_SIZE,
    "attention.value_length": _HEAD_SIZE,
    "attention.sliding_window": _TOKENS,
    "attention.sliding_window_pattern": _LAYERS,
    "attention.recurrent_layers": Range(1, 1),
    "attention.shared_kv_layers": _LAYERS,
    "attention.layer_norm_epsilon": _EPSILON,
    "attention.layer_norm_rms_epsilon": _EPSILON,
    "attention.scale": _FACTOR,
    "attention.decay_lora_rank": _WIDTH,
    "attention.iclr_lora_rank": _WIDTH,
    "attention.gate_lora_rank": _WIDTH,
    "attention.value_residual_mix_lora_rank": _WIDTH,
    "rope.dimension_count": _ROTATED,
    "rope.dimension_count_swa": _ROTATED,
    "rope.freq_base": _BASE,
    "rope.freq_base_swa": _BASE,
    "rope.scale_linear": _FACTOR,
    "rope.scaling.factor": _FACTOR,
    "rope.scaling.attn_factor": _FACTOR,
    "rope.scaling.original_context_length": _TOKENS,
    "rope.scaling.yarn_beta_fast": _FACTOR,
    "rope.scaling.yarn_beta_slow": _FACTOR,
    "ssm.conv_kernel": _CONVOLVED,
    "ssm.inner_size": _WIDTH,
    "ssm.state_size": _HEAD_SIZE,
    "ssm.time_step_rank": _WIDTH,
    "ssm.group_count": _HEADS,
    "shortconv.l_cache": _CONVOLVED,
    "wkv.head_size": _HEAD_SIZE,
    "embedding_scale": _FACTOR,
    "residual_scale": _FACTOR,
    "logit_scale": _FACTOR,
    "attn_logit_softcapping": _FACTOR,
    "final_logit_softcapping": _FACTOR,
}
"""Where 0 stands for none of it, that is allowed besides."""
