"""What tiny models with attention are put together from."""

from collections.abc import Mapping, Sequence

from gguf import GGMLQuantizationType

from tests.models.tiny import TinyModel

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF = 64, 4, 2, 32, 96
N_EXPERT, N_EXPERT_USED, N_FF_EXPERT = 6, 2, 32
EXPERTS: Mapping[str, object] = {"expert_count": N_EXPERT, "expert_used_count": N_EXPERT_USED}


def decoder_model(architecture: str, *, n_layer: int = 2, **metadata: object) -> TinyModel:
    """Return a model with the metadata that all have, and those given (with `__` for the dots of the keys)."""
    return TinyModel(
        architecture,
        n_layer=n_layer,
        n_embd=N_EMBD,
        metadata={
            "feed_forward_length": N_FF,
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": N_HEAD_KV,
            "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM,
            "rope.freq_base": 5000.0,
            **{key.replace("__", "."): value for key, value in metadata.items()},
        },
    )


def add_attention(
    model: TinyModel, *, bias: bool = False, head_dim: int = HEAD_DIM, layers: Sequence[int] | None = None
) -> None:
    for layer in layers or range(model.n_layer):
        rows = {"attn_q": N_HEAD * head_dim, "attn_k": N_HEAD_KV * head_dim, "attn_v": N_HEAD_KV * head_dim}
        for name, n_out in rows.items():
            model.matrix(f"blk.{layer}.{name}", n_out, N_EMBD)
            if bias:
                model.bias(f"blk.{layer}.{name}", n_out)
        model.matrix(f"blk.{layer}.attn_output", N_EMBD, N_HEAD * head_dim)


def add_ffn(model: TinyModel, *, suffix: str = "", n_ff: int = N_FF) -> None:
    for layer in range(model.n_layer):
        model.matrix(f"blk.{layer}.ffn_gate{suffix}", n_ff, N_EMBD)
        model.matrix(f"blk.{layer}.ffn_up{suffix}", n_ff, N_EMBD)
        model.matrix(f"blk.{layer}.ffn_down{suffix}", N_EMBD, n_ff)


def add_experts(
    model: TinyModel, n_ff: int, *, bias: bool = False, kind: GGMLQuantizationType = GGMLQuantizationType.F32
) -> None:
    for layer in range(model.n_layer):
        model.matrix(f"blk.{layer}.ffn_gate_inp", N_EXPERT, N_EMBD)
        shapes = {"ffn_gate_exps": (n_ff, N_EMBD), "ffn_up_exps": (n_ff, N_EMBD), "ffn_down_exps": (N_EMBD, n_ff)}
        for name, shape in shapes.items():
            model.matrix(f"blk.{layer}.{name}", N_EXPERT, *shape, kind=kind)
            if bias:
                model.bias(f"blk.{layer}.{name}", N_EXPERT, shape[0])
        if bias:
            model.bias(f"blk.{layer}.ffn_gate_inp", N_EXPERT)


def add_norms(model: TinyModel, *names: str, n: int | None = None) -> None:
    for layer in range(model.n_layer):
        model.norm(*(f"blk.{layer}.{name}" for name in names), n=n)


def add_small_norms(model: TinyModel, *names: str) -> None:
    """Add norms of what layers give: little, as in trained models, or the last layer makes much of any rounding."""
    for layer in range(model.n_layer):
        for name in names:
            model.uniform(f"blk.{layer}.{name}.weight", model.n_embd, low=0.1, high=0.4)
