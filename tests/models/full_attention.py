"""Tiny models with full attention, and a feed-forward network or experts (and OLMo 3, whose file is OLMo 2's)."""

from collections.abc import Callable, Mapping
from functools import partial

from tests.models.attention_parts import (
    EXPERTS,
    HEAD_DIM,
    N_EMBD,
    N_FF,
    N_FF_EXPERT,
    N_HEAD,
    N_HEAD_KV,
    add_attention,
    add_experts,
    add_ffn,
    add_norms,
    decoder_model,
)
from tests.models.tiny import TinyModel

GRANITE_SCALES: Mapping[str, object] = {
    "attention__scale": 0.1,
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "logit_scale": 1.5,
}
N_SWA = 24


def llama() -> TinyModel:
    """Llama 3's factors on frequencies, linear scaling on top, biases everywhere, an output of its own."""
    model = decoder_model("llama", rope__scaling__type="linear", rope__scaling__factor=2.0)
    model.embeddings(tied=False)
    model.uniform("rope_freqs.weight", HEAD_DIM // 2, low=1.0, high=8.0)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model, bias=True)
    add_ffn(model)
    for layer in range(model.n_layer):
        model.bias(f"blk.{layer}.attn_output", N_EMBD)
        for name, n_out in {"ffn_gate": N_FF, "ffn_up": N_FF, "ffn_down": N_EMBD}.items():
            model.bias(f"blk.{layer}.{name}", n_out)
    return model


def llama_yarn() -> TinyModel:
    """YaRN: fast frequencies as they are, slow ones scaled, some between."""
    model = decoder_model(
        "llama",
        rope__scaling__type="yarn",
        rope__scaling__factor=8.0,
        rope__scaling__original_context_length=128,
        rope__scaling__attn_factor=1.1,
    )
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model)
    add_ffn(model)
    return model


def mixtral() -> TinyModel:
    """`llama` with experts."""
    model = decoder_model("llama", **EXPERTS)
    model.embeddings(tied=False)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model)
    add_experts(model, N_FF)
    return model


def qwen2() -> TinyModel:
    """Biases of queries, keys and values."""
    head_dim = N_EMBD // N_HEAD
    model = decoder_model(
        "qwen2", attention__key_length=head_dim, attention__value_length=head_dim, rope__dimension_count=head_dim
    )
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model, bias=True, head_dim=head_dim)
    add_ffn(model)
    return model


def qwen3() -> TinyModel:
    """Norms of queries and keys."""
    model = decoder_model("qwen3")
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_norms(model, "attn_q_norm", "attn_k_norm", n=HEAD_DIM)
    add_attention(model)
    add_ffn(model)
    return model


def qwen3moe() -> TinyModel:
    """Norms of queries and keys, and experts."""
    model = decoder_model("qwen3moe", expert_feed_forward_length=N_FF_EXPERT, **EXPERTS)
    model.embeddings(tied=False)
    add_norms(model, "attn_norm", "ffn_norm")
    add_norms(model, "attn_q_norm", "attn_k_norm", n=HEAD_DIM)
    add_attention(model)
    add_experts(model, N_FF_EXPERT)
    return model


def phi3(*, n_ctx_orig: int) -> TinyModel:
    """LongRoPE's factors for short and long contexts, a part of each head rotated, fused tensors."""
    head_dim, n_rot = N_EMBD // N_HEAD, 12
    model = decoder_model(
        "phi3",
        attention__key_length=head_dim,
        attention__value_length=head_dim,
        attention__sliding_window=N_SWA,
        rope__dimension_count=n_rot,
        rope__scaling__original_context_length=n_ctx_orig,
        rope__scaling__attn_factor=1.19,
    )
    model.embeddings(tied=False)
    model.uniform("rope_factors_long.weight", n_rot // 2, low=1.0, high=30.0)
    model.uniform("rope_factors_short.weight", n_rot // 2, low=1.0, high=1.3)
    add_norms(model, "attn_norm", "ffn_norm")
    for layer in range(model.n_layer):
        model.matrix(f"blk.{layer}.attn_qkv", (N_HEAD + 2 * N_HEAD_KV) * head_dim, N_EMBD)
        model.matrix(f"blk.{layer}.attn_output", N_EMBD, N_EMBD)
        model.matrix(f"blk.{layer}.ffn_up", 2 * N_FF, N_EMBD)
        model.matrix(f"blk.{layer}.ffn_down", N_EMBD, N_FF)
    return model


def smollm3() -> TinyModel:
    """A layer without positions."""
    model = decoder_model("smollm3", n_layer=4)
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model)
    add_ffn(model)
    return model


def granite(*, rotated: bool = True) -> TinyModel:
    """Scales of the embeddings, the attention, what each part adds, and the logits."""
    model = decoder_model("granite", rope__scaling__finetuned=rotated, **GRANITE_SCALES)
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model, bias=True)
    add_ffn(model)
    return model


def granitemoe() -> TinyModel:
    """The same with experts, one of them shared."""
    model = decoder_model("granitemoe", expert_shared_feed_forward_length=N_FF_EXPERT, **GRANITE_SCALES, **EXPERTS)
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "ffn_norm")
    add_attention(model)
    add_experts(model, N_FF)
    add_ffn(model, suffix="_shexp", n_ff=N_FF_EXPERT)
    return model


def olmo2() -> TinyModel:
    """Norms of what the parts give, and of all heads at once."""
    return _olmo2()


def olmo3() -> TinyModel:
    """The same with a window, whose layers don't know of YaRN."""
    return _olmo2(
        n_layer=4,
        attention__sliding_window=N_SWA,
        rope__scaling__type="yarn",
        rope__scaling__factor=8.0,
        rope__scaling__original_context_length=128,
    )


def _olmo2(*, n_layer: int = 2, **metadata: object) -> TinyModel:
    head_dim = N_EMBD // N_HEAD
    head = {"attention__key_length": head_dim, "attention__value_length": head_dim, "rope__dimension_count": head_dim}
    model = decoder_model("olmo2", n_layer=n_layer, **head, **metadata)
    model.embeddings(tied=False)
    add_norms(model, "post_attention_norm", "post_ffw_norm")
    add_norms(model, "attn_q_norm", n=N_HEAD * head_dim)
    add_norms(model, "attn_k_norm", n=N_HEAD_KV * head_dim)
    add_attention(model, head_dim=head_dim)
    add_ffn(model)
    return model


def olmoe() -> TinyModel:
    """Experts whose shares don't sum up to 1, and norms of all heads at once."""
    head_dim = N_EMBD // N_HEAD
    model = decoder_model(
        "olmoe",
        attention__head_count_kv=N_HEAD,
        attention__key_length=head_dim,
        attention__value_length=head_dim,
        rope__dimension_count=head_dim,
        **EXPERTS,
    )
    model.embeddings(tied=False)
    add_norms(model, "attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")
    for layer in range(model.n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            model.matrix(f"blk.{layer}.{name}", N_EMBD, N_EMBD)
    add_experts(model, N_FF)
    return model


MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "llama": llama,
    "llama, YaRN": llama_yarn,
    "llama, experts": mixtral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3moe,
    "phi3, long": partial(phi3, n_ctx_orig=128),
    "phi3, short": partial(phi3, n_ctx_orig=1024),
    "smollm3": smollm3,
    "granite": granite,
    "granite, without positions": partial(granite, rotated=False),
    "granitemoe": granitemoe,
    "olmo2": olmo2,
    "olmo2, window": olmo3,
    "olmoe": olmoe,
}
