"""Tiny models of which some layers have a sliding window."""

from collections.abc import Callable, Mapping

from gguf import GGMLQuantizationType

from tests.models.attention_parts import (
    EXPERTS,
    HEAD_DIM,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_FF_EXPERT,
    N_HEAD,
    add_attention,
    add_experts,
    add_ffn,
    add_norms,
    add_small_norms,
    decoder_model,
)
from tests.models.tiny import N_VOCAB, TinyModel

N_SWA = 24


def gemma2() -> TinyModel:
    """Every other layer with a window; scores and logits capped."""
    model = decoder_model(
        "gemma2",
        n_layer=4,
        attention__sliding_window=N_SWA,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=6.0,
    )
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    add_attention(model)
    add_ffn(model)
    return model


def gemma3() -> TinyModel:
    """Five layers with a window to one without, which scales positions; queries and keys normed."""
    model = decoder_model(
        "gemma3",
        n_layer=7,
        attention__sliding_window=N_SWA,
        rope__freq_base=100000.0,
        rope__scaling__type="linear",
        rope__scaling__factor=4.0,
    )
    model.embeddings(tied=True)
    add_norms(model, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    add_norms(model, "attn_q_norm", "attn_k_norm", n=HEAD_DIM)
    add_attention(model)
    add_ffn(model)
    return model


def gemma3n() -> TinyModel:
    """A wide stream, per-layer embeddings, gates that are mostly closed, and layers that share rows."""
    n_layer, n_altup, n_per_layer, rank = 23, 4, 256, 64
    model = decoder_model(
        "gemma3n",
        n_layer=n_layer,
        attention__sliding_window=N_SWA,
        attention__shared_kv_layers=n_layer - 20,
        embedding_length_per_layer_input=n_per_layer,
        rope__freq_base=100000.0,
    )
    model.embeddings(tied=True)
    _per_layer_embeddings(model, n_per_layer)
    for name in ("altup_proj", "altup_unembd_proj"):
        model.matrix(name, n_altup - 1, N_EMBD, N_EMBD)
    add_norms(model, "attn_norm", "ffn_norm", "altup_router_norm", "altup_correct_scale")
    add_norms(model, "attn_q_norm", "attn_k_norm", n=HEAD_DIM)
    add_small_norms(model, "post_attention_norm", "post_ffw_norm", "laurel_post_norm")
    add_attention(model)
    add_ffn(model)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        model.matrix(f"{block}.altup_router", n_altup, N_EMBD)
        model.uniform(f"{block}.altup_predict_coef.weight", n_altup**2, n_altup, low=-0.1, high=0.1)
        model.uniform(f"{block}.altup_correct_coef.weight", n_altup, n_altup, low=-0.3, high=0.3)
        model.matrix(f"{block}.laurel_l", rank, N_EMBD)
        model.matrix(f"{block}.laurel_r", N_EMBD, rank)
    return model


def gemma4() -> TinyModel:
    """Heads of two sizes, per-layer embeddings, layers that share rows, and scales of the layers."""
    n_per_layer = 32
    model = _gemma4(n_layer=5, n_per_layer=n_per_layer, attention__shared_kv_layers=2)
    _per_layer_embeddings(model, n_per_layer)
    for layer in range(model.n_layer):
        model.uniform(f"blk.{layer}.layer_output_scale.weight", 1, low=0.5, high=1.5)
    return model


def gemma4_moe() -> TinyModel:
    """Experts beside the plain network, some in one tensor; keys that serve as values where there is no window."""
    model = _gemma4(n_layer=3, n_per_layer=0, expert_feed_forward_length=N_FF_EXPERT, **EXPERTS)
    del model.tensors["blk.2.attn_v.weight"]
    add_experts(model, N_FF_EXPERT)
    del model.tensors["blk.0.ffn_gate_exps.weight"], model.tensors["blk.0.ffn_up_exps.weight"]
    model.matrix("blk.0.ffn_gate_up_exps", N_EXPERT, 2 * N_FF_EXPERT, N_EMBD)
    add_norms(model, "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
    for layer in range(model.n_layer):
        model.uniform(f"blk.{layer}.ffn_gate_inp.scale", N_EMBD, low=0.5, high=8.0)
        model.uniform(f"blk.{layer}.ffn_down_exps.scale", N_EXPERT, low=0.5, high=1.5)
    return model


def _gemma4(*, n_layer: int, n_per_layer: int, **metadata: object) -> TinyModel:
    """Return a model where every third layer has full attention."""
    swa = [layer % 3 != 2 for layer in range(n_layer)]
    head_dim_swa = HEAD_DIM // 2
    model = decoder_model(
        "gemma4",
        n_layer=n_layer,
        attention__sliding_window=N_SWA,
        attention__sliding_window_pattern=swa,
        attention__key_length_swa=head_dim_swa,
        attention__value_length_swa=head_dim_swa,
        embedding_length_per_layer_input=n_per_layer,
        rope__dimension_count_swa=head_dim_swa,
        rope__freq_base=100000.0,
        final_logit_softcapping=10.0,
        **metadata,
    )
    model.embeddings(tied=True)
    model.uniform("rope_freqs.weight", HEAD_DIM // 2, low=1.0, high=30.0)
    add_norms(model, "attn_norm", "ffn_norm")
    add_small_norms(model, "post_attention_norm", "post_ffw_norm")
    for layer, is_swa in enumerate(swa):
        add_attention(model, head_dim=head_dim_swa if is_swa else HEAD_DIM, layers=[layer])
        for name in ("attn_q_norm", "attn_k_norm"):
            model.norm(f"blk.{layer}.{name}", n=head_dim_swa if is_swa else HEAD_DIM)
    add_ffn(model)
    return model


def _per_layer_embeddings(model: TinyModel, n_per_layer: int) -> None:
    model.matrix("per_layer_token_embd", N_VOCAB, model.n_layer * n_per_layer)
    model.matrix("per_layer_model_proj", model.n_layer * n_per_layer, N_EMBD)
    model.norm("per_layer_proj_norm", n=n_per_layer)
    add_small_norms(model, "post_norm")
    for layer in range(model.n_layer):
        model.matrix(f"blk.{layer}.inp_gate", n_per_layer, N_EMBD)
        model.matrix(f"blk.{layer}.proj", N_EMBD, n_per_layer)


def gpt_oss(kind: GGMLQuantizationType = GGMLQuantizationType.F32) -> TinyModel:
    """Attention sinks, every other layer with a window, YaRN, experts with biases, in a type of their own."""
    model = decoder_model(
        "gpt-oss",
        n_layer=4,
        attention__sliding_window=N_SWA,
        expert_feed_forward_length=N_FF,
        rope__scaling__type="yarn",
        rope__scaling__factor=8.0,
        rope__scaling__original_context_length=128,
        **EXPERTS,
    )
    model.embeddings(tied=False)
    add_norms(model, "attn_norm", "post_attention_norm")
    add_attention(model, bias=True)
    add_experts(model, N_FF, bias=True, kind=kind)
    for layer in range(model.n_layer):
        model.bias(f"blk.{layer}.attn_output", N_EMBD)
        model.uniform(f"blk.{layer}.attn_sinks.weight", N_HEAD, low=-1.0, high=3.0)
    return model


def cohere2() -> TinyModel:
    """Parallel blocks with a norm by mean and deviation; the layer without a window knows no positions."""
    head_dim = N_EMBD // N_HEAD
    model = decoder_model(
        "cohere2",
        n_layer=4,
        attention__key_length=head_dim,
        attention__value_length=head_dim,
        attention__sliding_window=N_SWA,
        attention__layer_norm_epsilon=1e-5,
        rope__dimension_count=head_dim,
        logit_scale=0.5,
    )
    del model.metadata["attention.layer_norm_rms_epsilon"]
    model.embeddings(tied=True)
    add_norms(model, "attn_norm")
    add_attention(model, head_dim=head_dim)
    add_ffn(model)
    return model


MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gemma4, experts": gemma4_moe,
    "gpt-oss": gpt_oss,
    "cohere2": cohere2,
}
