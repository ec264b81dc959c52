"""Tiny models with recurrent layers, alone or beside attention, with every feature of their architectures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tests.models.tiny import TinyModel

N_EMBD, N_FF = 64, 96
N_HEAD, N_HEAD_KV, HEAD_DIM = 4, 2, 16
N_EXPERT, N_FF_EXPERT = 4, 32
D_CONV, D_STATE, N_SSM_HEAD, N_GROUP = 4, 16, 8, 2
D_INNER = 2 * N_EMBD
DT_RANK = 4  # of the first Mamba
N_VALUE_HEAD, N_KEY_HEAD = 4, 2  # of a delta net
N_VALUE, N_QKV = N_VALUE_HEAD * D_STATE, (N_VALUE_HEAD + 2 * N_KEY_HEAD) * D_STATE


def mamba2(*, n_group: int = N_GROUP) -> TinyModel:
    model = _model("mamba2", 3, _ssm(N_SSM_HEAD, n_group))
    for layer in range(3):
        _mamba2(model, layer, n_group=n_group)
    return model


def mamba(*, normed: bool = False) -> TinyModel:
    model = _model("mamba", 3, _ssm(DT_RANK) | {"ssm.dt_b_c_rms": normed})
    for layer in range(3):
        _mamba(model, layer)
    return model


def lfm2(*, n_swa: int | None = None) -> TinyModel:
    window = {} if n_swa is None else {"attention.sliding_window": n_swa}
    model = _model("lfm2", 4, _attention([0, N_HEAD_KV, 0, N_HEAD_KV]) | {"shortconv.l_cache": 3} | window)
    for layer in range(4):
        _lfm2_mixer(model, layer, attention=layer % 2 == 1)
        _ffn(model, layer)
    return model


def lfm2moe() -> TinyModel:
    experts = _expert_counts() | {"expert_gating_func": 2, "leading_dense_block_count": 1}
    model = _model("lfm2moe", 3, _attention([0, N_HEAD_KV, 0]) | {"shortconv.l_cache": 3} | experts)
    for layer in range(3):
        _lfm2_mixer(model, layer, attention=layer == 1)
        if layer == 0:
            _ffn(model, layer)
        else:
            _experts(model, layer)
            model.bias(f"blk.{layer}.exp_probs_b", N_EXPERT)
    return model


def falcon_h1() -> TinyModel:
    model = _model("falcon-h1", 2, _ssm(N_SSM_HEAD, N_GROUP) | _attention(N_HEAD_KV), tied=False)
    for layer in range(2):
        _mamba2(model, layer)
        _attention_tensors(model, layer)
        _ffn(model, layer)
        model.tensors[f"blk.{layer}.ffn_norm"] = model.tensors.pop(f"blk.{layer}.ffn_norm.weight")
    return model


def granitehybrid(*, experts: bool) -> TinyModel:
    """Return one with experts and attention that knows no positions, or with neither."""
    metadata = _expert_counts() | {"rope.scaling.finetuned": False} if experts else {}
    scales = {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0, "attention.scale": 0.2}
    shapes = _ssm(N_SSM_HEAD, N_GROUP) | _attention([0, N_HEAD_KV, 0])
    model = _model("granitehybrid", 3, shapes | scales | metadata)
    for layer in range(3):
        if layer == 1:
            _attention_tensors(model, layer)
        else:
            _mamba2(model, layer)
        if experts:
            _experts(model, layer, n_ff=N_FF)
            _shared_expert(model, layer)
        else:
            _ffn(model, layer)
    return model


def jamba() -> TinyModel:
    model = _model("jamba", 3, _ssm(DT_RANK) | _attention([0, N_HEAD_KV, 0]) | _expert_counts())
    for layer in range(3):
        block = f"blk.{layer}"
        if layer == 1:
            _attention_tensors(model, layer)
        else:
            _mamba(model, layer)
            model.norm(f"{block}.ssm_dt_norm", n=DT_RANK)
            model.norm(f"{block}.ssm_b_norm", f"{block}.ssm_c_norm", n=D_STATE)
        if layer == 0:
            _ffn(model, layer)
        else:
            _experts(model, layer, n_ff=N_FF)
    return model


def nemotron_h() -> TinyModel:
    lengths = {"feed_forward_length": [0, N_FF, 0, N_FF], "attention.layer_norm_epsilon": 1e-5}
    shapes = _ssm(N_SSM_HEAD, N_GROUP) | _attention([0, 0, N_HEAD_KV, 0])
    model = _model("nemotron_h", 4, shapes | lengths, tied=False)
    _mamba2(model, 0)
    _attention_tensors(model, 2)
    for layer in (1, 3):
        for name, n_out, n_in in (("ffn_up", N_FF, N_EMBD), ("ffn_down", N_EMBD, N_FF)):
            model.matrix(f"blk.{layer}.{name}", n_out, n_in)
            model.bias(f"blk.{layer}.{name}", n_out)
    return model


def qwen35() -> TinyModel:
    """Return one with a head for a second token, which has no part in the first."""
    model = _model("qwen35", 5, _qwen() | _sections() | {"nextn_predict_layers": 1})
    for layer in range(5):
        if layer < 3:
            _delta_net(model, layer)
            _projection_by_part(model, layer)
        else:
            _gated_attention(model, layer)
        _ffn(model, layer, norm="post_attention_norm")
    model.matrix("blk.4.nextn.eh_proj", N_EMBD, 2 * N_EMBD)
    model.norm("blk.4.nextn.enorm", "blk.4.nextn.hnorm", "blk.4.nextn.shared_head_norm")
    return model


def qwen35moe() -> TinyModel:
    recurrent = {"attention.recurrent_layers": [True, False, True]}
    model = _model("qwen35moe", 3, _qwen() | _sections() | _expert_counts() | recurrent, tied=False)
    for layer in range(3):
        if layer == 1:
            _gated_attention(model, layer)
        else:
            _delta_net(model, layer)
            _projection_by_part(model, layer)
        _experts(model, layer, norm="post_attention_norm")
        _shared_expert(model, layer, gated=True)
    return model


def qwen3next(*, in_one: bool) -> TinyModel:
    """Return one as the first files had it, all of a key head `in_one`, or as the later ones have it."""
    model = _model("qwen3next", 4, _qwen() | _expert_counts() | {"full_attention_interval": 2})
    for layer in range(4):
        if layer % 2 == 1:
            _gated_attention(model, layer)
        else:
            _delta_net(model, layer)
            model.matrix(f"blk.{layer}.ssm_ba", 2 * N_VALUE_HEAD, N_EMBD)
            if in_one:
                model.matrix(f"blk.{layer}.ssm_in", N_QKV + N_VALUE, N_EMBD)
            else:
                model.matrix(f"blk.{layer}.attn_qkv", N_QKV, N_EMBD)
                model.matrix(f"blk.{layer}.attn_gate", N_VALUE, N_EMBD)
        _experts(model, layer, norm="post_attention_norm")
        _shared_expert(model, layer, gated=True)
    return model


def rwkv7() -> TinyModel:
    ranks = {"w": ("decay", 8), "a": ("iclr", 12), "v": ("value_residual_mix", 4), "g": ("gate", 16)}
    metadata = {f"attention.{key}_lora_rank": rank for key, rank in ranks.values()}
    metadata |= {"wkv.head_size": N_EMBD // 2, "attention.layer_norm_epsilon": 1e-5}
    model = _model("rwkv7", 3, metadata | {"attention.head_count": 0}, tied=False)
    del model.metadata["attention.layer_norm_rms_epsilon"]
    for name in ("token_embd_norm", "output_norm"):
        model.norm(name)
        model.bias(name, N_EMBD)
    for layer in range(3):
        block = f"blk.{layer}"
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            model.norm(f"{block}.{name}")
            model.bias(f"{block}.{name}", N_EMBD)
        for name, (_, n_rank) in ranks.items():
            rank = ranks["a"][1] if (name, layer) == ("v", 0) else n_rank  # as llama.cpp wants what nothing uses
            model.matrix(f"{block}.time_mix_{name}1", rank, N_EMBD)
            model.matrix(f"{block}.time_mix_{name}2", N_EMBD, rank)
            if name != "g":
                model.uniform(f"{block}.time_mix_{name}0.weight", N_EMBD, low=-1, high=1)
        model.uniform(f"{block}.time_mix_lerp_fused.weight", 6, 1, 1, N_EMBD, low=0, high=1)
        for name in ("k_k", "k_a", "r_k"):
            model.uniform(f"{block}.time_mix_{name}.weight", N_EMBD, low=0, high=1)
        for name in ("key", "value", "receptance", "output"):
            model.matrix(f"{block}.time_mix_{name}", N_EMBD, N_EMBD)
        model.uniform(f"{block}.channel_mix_lerp_k.weight", N_EMBD, low=0, high=1)
        model.matrix(f"{block}.channel_mix_key", N_FF, N_EMBD)
        model.matrix(f"{block}.channel_mix_value", N_EMBD, N_FF)
    return model


MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "mamba": mamba,
    "mamba, as Falcon Mamba": partial(mamba, normed=True),
    "mamba2": mamba2,
    "mamba2 in one group": partial(mamba2, n_group=1),
    "lfm2": lfm2,
    "lfm2 with a sliding window": partial(lfm2, n_swa=24),
    "lfm2moe": lfm2moe,
    "qwen35": qwen35,
    "qwen35moe": qwen35moe,
    "qwen3next": partial(qwen3next, in_one=False),
    "qwen3next, first files": partial(qwen3next, in_one=True),
    "falcon-h1": falcon_h1,
    "granitehybrid": partial(granitehybrid, experts=True),
    "granitehybrid without experts": partial(granitehybrid, experts=False),
    "jamba": jamba,
    "nemotron_h": nemotron_h,
    "rwkv7": rwkv7,
}


def _model(architecture: str, n_layer: int, metadata: Mapping[str, object], *, tied: bool = True) -> TinyModel:
    """Return a model with what all have."""
    common = {"feed_forward_length": N_FF, "attention.layer_norm_rms_epsilon": 1e-5}
    model = TinyModel(architecture, n_layer=n_layer, n_embd=N_EMBD, metadata=common | metadata)
    model.embeddings(tied=tied)
    if architecture.startswith("lfm2"):
        model.tensors["token_embd_norm.weight"] = model.tensors.pop("output_norm.weight")
    model.norm(*(f"blk.{layer}.attn_norm" for layer in range(n_layer)))
    return model


def _attention(n_head_kv: int | Sequence[int]) -> dict[str, object]:
    return {
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 5000.0,
    }


def _ssm(dt_rank: int, n_group: int | None = None, d_inner: int = D_INNER) -> dict[str, object]:
    groups = {} if n_group is None else {"ssm.group_count": n_group}
    return {
        "ssm.conv_kernel": D_CONV,
        "ssm.inner_size": d_inner,
        "ssm.state_size": D_STATE,
        "ssm.time_step_rank": dt_rank,
        **groups,
    }


def _expert_counts() -> dict[str, object]:
    return {
        "expert_count": N_EXPERT,
        "expert_used_count": 2,
        "expert_feed_forward_length": N_FF_EXPERT,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
    }


def _qwen() -> dict[str, object]:
    ssm = _ssm(N_VALUE_HEAD, N_KEY_HEAD, d_inner=N_VALUE)
    return ssm | _attention(N_HEAD_KV) | {"rope.dimension_count": HEAD_DIM // 2}


def _sections() -> dict[str, object]:
    return {"rope.dimension_sections": [2, 1, 1, 0]}


def _ffn(model: TinyModel, layer: int, *, norm: str = "ffn_norm") -> None:
    model.norm(f"blk.{layer}.{norm}")
    model.matrix(f"blk.{layer}.ffn_gate", N_FF, N_EMBD)
    model.matrix(f"blk.{layer}.ffn_up", N_FF, N_EMBD)
    model.matrix(f"blk.{layer}.ffn_down", N_EMBD, N_FF)


def _experts(model: TinyModel, layer: int, *, n_ff: int = N_FF_EXPERT, norm: str = "ffn_norm") -> None:
    block = f"blk.{layer}"
    model.norm(f"{block}.{norm}")
    model.matrix(f"{block}.ffn_gate_inp", N_EXPERT, N_EMBD)
    model.matrix(f"{block}.ffn_gate_exps", N_EXPERT, n_ff, N_EMBD)
    model.matrix(f"{block}.ffn_up_exps", N_EXPERT, n_ff, N_EMBD)
    model.matrix(f"{block}.ffn_down_exps", N_EXPERT, N_EMBD, n_ff)


def _shared_expert(model: TinyModel, layer: int, *, gated: bool = False) -> None:
    block = f"blk.{layer}"
    if gated:
        model.matrix(f"{block}.ffn_gate_inp_shexp", 1, N_EMBD)
    model.matrix(f"{block}.ffn_gate_shexp", N_FF_EXPERT, N_EMBD)
    model.matrix(f"{block}.ffn_up_shexp", N_FF_EXPERT, N_EMBD)
    model.matrix(f"{block}.ffn_down_shexp", N_EMBD, N_FF_EXPERT)


def _attention_tensors(model: TinyModel, layer: int, *, n_q: int = N_HEAD * HEAD_DIM) -> None:
    block = f"blk.{layer}"
    model.matrix(f"{block}.attn_q", n_q, N_EMBD)
    model.matrix(f"{block}.attn_k", N_HEAD_KV * HEAD_DIM, N_EMBD)
    model.matrix(f"{block}.attn_v", N_HEAD_KV * HEAD_DIM, N_EMBD)
    model.matrix(f"{block}.attn_output", N_EMBD, N_HEAD * HEAD_DIM)


def _gated_attention(model: TinyModel, layer: int) -> None:
    _attention_tensors(model, layer, n_q=2 * N_HEAD * HEAD_DIM)
    model.norm(f"blk.{layer}.attn_q_norm", f"blk.{layer}.attn_k_norm", n=HEAD_DIM)


def _lfm2_mixer(model: TinyModel, layer: int, *, attention: bool) -> None:
    if attention:
        _attention_tensors(model, layer)
        model.norm(f"blk.{layer}.attn_q_norm", f"blk.{layer}.attn_k_norm", n=HEAD_DIM)
        return
    block = f"blk.{layer}.shortconv"
    model.matrix(f"{block}.conv", N_EMBD, 3)
    model.matrix(f"{block}.in_proj", 3 * N_EMBD, N_EMBD)
    model.matrix(f"{block}.out_proj", N_EMBD, N_EMBD)


def _delta_net(model: TinyModel, layer: int) -> None:
    """Add a delta net but for what its inputs are projected by."""
    block = f"blk.{layer}"
    model.matrix(f"{block}.ssm_conv1d", N_QKV, D_CONV)
    model.bias(f"{block}.ssm_dt", N_VALUE_HEAD)
    model.uniform(f"{block}.ssm_a", N_VALUE_HEAD, low=-1.5, high=-0.02)
    model.norm(f"{block}.ssm_norm", n=D_STATE)
    model.matrix(f"{block}.ssm_out", N_EMBD, N_VALUE)


def _projection_by_part(model: TinyModel, layer: int) -> None:
    rows = {"attn_qkv": N_QKV, "attn_gate": N_VALUE, "ssm_beta": N_VALUE_HEAD, "ssm_alpha": N_VALUE_HEAD}
    for name, n_out in rows.items():
        model.matrix(f"blk.{layer}.{name}", n_out, N_EMBD)


def _mamba2(model: TinyModel, layer: int, *, n_group: int = N_GROUP) -> None:
    block, n_channel = f"blk.{layer}", D_INNER + 2 * n_group * D_STATE
    model.matrix(f"{block}.ssm_in", D_INNER + n_channel + N_SSM_HEAD, N_EMBD)
    model.matrix(f"{block}.ssm_conv1d", n_channel, D_CONV)
    model.bias(f"{block}.ssm_conv1d", n_channel)
    model.bias(f"{block}.ssm_dt", N_SSM_HEAD)
    model.uniform(f"{block}.ssm_a", N_SSM_HEAD, 1, low=-1.5, high=-0.02)
    model.uniform(f"{block}.ssm_d", N_SSM_HEAD, 1, low=-1, high=1)
    model.uniform(f"{block}.ssm_norm.weight", n_group, D_INNER // n_group, low=0.5, high=1.5)
    model.matrix(f"{block}.ssm_out", N_EMBD, D_INNER)


def _mamba(model: TinyModel, layer: int) -> None:
    block = f"blk.{layer}"
    model.matrix(f"{block}.ssm_in", 2 * D_INNER, N_EMBD)
    model.matrix(f"{block}.ssm_conv1d", D_INNER, D_CONV)
    model.bias(f"{block}.ssm_conv1d", D_INNER)
    model.matrix(f"{block}.ssm_x", DT_RANK + 2 * D_STATE, D_INNER)
    model.matrix(f"{block}.ssm_dt", D_INNER, DT_RANK)
    model.bias(f"{block}.ssm_dt", D_INNER)
    model.uniform(f"{block}.ssm_a", D_INNER, D_STATE, low=-1.5, high=-0.02)
    model.uniform(f"{block}.ssm_d", D_INNER, low=-1, high=1)
    model.matrix(f"{block}.ssm_out", N_EMBD, D_INNER)
