"""The shapes of published models: what of them decides how fast they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Tensors = dict[str, tuple[int, ...]]
"""Shapes by name, in NumPy's order."""


@dataclass(frozen=True)
class Shape:
    """A model but for its weights and tokens.

    Attributes:
        metadata: by key, without the architecture that GGUF's keys begin with.
        tensors: the token embeddings first.
    """

    architecture: str
    metadata: Mapping[str, object]
    tensors: Tensors

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return self.tensors["token_embd.weight"][0]


def lfm2(*, n_vocab: int, n_embd: int, n_ff: int, n_head: int, n_head_kv: Sequence[int], n_ctx: int) -> Shape:
    """Return an LFM2, short convolutions where `n_head_kv` of a layer is 0, and attention."""
    tensors: Tensors = {"token_embd.weight": (n_vocab, n_embd), "token_embd_norm.weight": (n_embd,)}
    head_dim = n_embd // n_head
    convolution: Tensors = {
        "shortconv.conv": (n_embd, 3),
        "shortconv.in_proj": (3 * n_embd, n_embd),
        "shortconv.out_proj": (n_embd, n_embd),
    }
    for layer, n_kv in enumerate(n_head_kv):
        attention = _attention(n_embd, n_q=n_embd, n_kv=n_kv * head_dim, n_out=n_embd, head_dim=head_dim)
        ffn = {"ffn_norm": (n_embd,), **_ffn(n_embd, n_ff)}
        tensors |= _block(layer, {"attn_norm": (n_embd,), **(attention if n_kv else convolution), **ffn})
    metadata = {
        **_common(len(n_head_kv), n_embd, n_ctx, eps=1e-5),
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": list(n_head_kv),
        "rope.freq_base": 1e6,
        "shortconv.l_cache": 3,
    }
    return Shape("lfm2", metadata, tensors)


def qwen35(
    *,
    n_vocab: int,
    n_layer: int,
    n_embd: int,
    n_ff: int,
    n_head: int,
    n_head_kv: int,
    head_dim: int,
    n_delta_head: int,
    d_state: int,
    n_ctx: int,
) -> Shape:
    """Return a Qwen3.5: three gated delta nets, with as many keys as values, to one layer with gated attention."""
    tensors: Tensors = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    n_q, d_inner = n_head * head_dim, n_delta_head * d_state
    n_pair = head_dim // 8  # values of a head that are rotated, a quarter, two by two
    attention = _attention(n_embd, n_q=2 * n_q, n_kv=n_head_kv * head_dim, n_out=n_q, head_dim=head_dim)
    delta_net: Tensors = {
        "attn_qkv": (3 * d_inner, n_embd),
        "attn_gate": (d_inner, n_embd),
        "ssm_beta": (n_delta_head, n_embd),
        "ssm_alpha": (n_delta_head, n_embd),
        "ssm_conv1d": (3 * d_inner, 4),
        "ssm_dt.bias": (n_delta_head,),
        "ssm_a": (n_delta_head,),
        "ssm_norm": (d_state,),
        "ssm_out": (n_embd, d_inner),
    }
    for layer in range(n_layer):
        mixer = attention if layer % 4 == 3 else delta_net
        ffn = {"post_attention_norm": (n_embd,), **_ffn(n_embd, n_ff)}
        tensors |= _block(layer, {"attn_norm": (n_embd,), **mixer, **ffn})
    metadata = {
        **_common(n_layer, n_embd, n_ctx, eps=1e-6),
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "full_attention_interval": 4,
        "rope.dimension_count": 2 * n_pair,
        "rope.dimension_sections": [(n_pair + 2) // 3, (n_pair + 1) // 3, n_pair // 3, 0],
        "rope.freq_base": 1e7,
        **_ssm(d_inner=d_inner, d_state=d_state, n_head=n_delta_head, n_group=n_delta_head),
    }
    return Shape("qwen35", metadata, tensors)


def mamba2(*, n_vocab: int, n_layer: int, n_embd: int, d_inner: int, d_state: int, n_head: int, n_ctx: int) -> Shape:
    """Return a Mamba-2 whose heads all share their keys."""
    tensors: Tensors = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    n_channel = d_inner + 2 * d_state
    block: Tensors = {
        "attn_norm": (n_embd,),
        "ssm_in": (d_inner + n_channel + n_head, n_embd),
        "ssm_conv1d": (n_channel, 4),
        "ssm_conv1d.bias": (n_channel,),
        "ssm_dt.bias": (n_head,),
        "ssm_a": (n_head, 1),
        "ssm_d": (n_head, 1),
        "ssm_norm": (1, d_inner),
        "ssm_out": (n_embd, d_inner),
    }
    for layer in range(n_layer):
        tensors |= _block(layer, block)
    metadata = {
        **_common(n_layer, n_embd, n_ctx, eps=1e-5),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        **_ssm(d_inner=d_inner, d_state=d_state, n_head=n_head, n_group=1),
    }
    return Shape("mamba2", metadata, tensors)


def _block(layer: int, tensors: Tensors) -> Tensors:
    """Return the tensors of a layer under their full names, which mostly end with `.weight`."""
    ends = {name: "" if name in {"ssm_a", "ssm_d"} or name.endswith(".bias") else ".weight" for name in tensors}
    return {f"blk.{layer}.{name}{ends[name]}": shape for name, shape in tensors.items()}


def _attention(n_embd: int, *, n_q: int, n_kv: int, n_out: int, head_dim: int) -> Tensors:
    return {
        "attn_q": (n_q, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "attn_output": (n_embd, n_out),
    }


def _ffn(n_embd: int, n_ff: int) -> Tensors:
    return {"ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}


def _common(n_layer: int, n_embd: int, n_ctx: int, *, eps: float) -> dict[str, object]:
    return {
        "block_count": n_layer,
        "embedding_length": n_embd,
        "context_length": n_ctx,
        "attention.layer_norm_rms_epsilon": eps,
    }


def _ssm(*, d_inner: int, d_state: int, n_head: int, n_group: int) -> dict[str, object]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": d_inner,
        "ssm.state_size": d_state,
        "ssm.time_step_rank": n_head,
        "ssm.group_count": n_group,
    }


SHAPES: Mapping[str, Shape] = {
    "lfm2-350m": lfm2(
        n_vocab=65_536,
        n_embd=1024,
        n_ff=4608,
        n_head=16,
        n_head_kv=[0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
        n_ctx=128_000,
    ),
    "qwen3.5-0.8b": qwen35(
        n_vocab=248_320,
        n_layer=24,
        n_embd=1024,
        n_ff=3584,
        n_head=8,
        n_head_kv=2,
        head_dim=256,
        n_delta_head=16,
        d_state=128,
        n_ctx=262_144,
    ),
    "mamba2-130m": mamba2(
        n_vocab=50_288, n_layer=24, n_embd=768, d_inner=1536, d_state=128, n_head=24, n_ctx=1_048_576
    ),
}
"""By the names of the models: LFM2-350M, Qwen3.5-0.8B (its text model), Mamba-2 130M."""
