"""Architecture `gemma3`: five layers with a sliding window to one with full attention (arXiv 2503.19786)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters, LayerConfig
from engine.models.layers import Attention, Block, GatedFFN, Norm, Rope
from engine.models.model import Model
from engine.models.weights import Weights

_PATTERN = 6  # every sixth layer has full attention
_N_LAYER_27B = 62  # the one size whose queries are scaled by n_embd / n_head instead of by the head's size


def load_gemma3(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    n_swa = hyperparameters.optional_integer("attention.sliding_window")
    full = LayerConfig(hyperparameters.rope(interleaved=False))
    if n_swa is None:
        windowed = full
    else:
        base = hyperparameters.number("rope.freq_base_swa", 10000.0)
        windowed = LayerConfig(hyperparameters.rope(interleaved=False, base=base, scale=1.0), n_swa)
    n_layer = hyperparameters.integer("block_count")
    layers = tuple(windowed if layer % _PATTERN < _PATTERN - 1 else full for layer in range(n_layer))
    config = hyperparameters.config(interleaved=False, layers=layers)

    n_embd, eps = config.n_embd, config.norm_eps
    n_ff = hyperparameters.integer("feed_forward_length")
    scale = (n_embd // config.n_head if n_layer == _N_LAYER_27B else config.head_dim_k) ** -0.5
    ropes = {layer: Rope(layer.rope) for layer in {windowed, full}}
    token_embd = weights.pop("token_embd.weight", config.n_vocab, n_embd)

    def norm(name: str) -> Norm:
        return Norm.load(weights, name, n_embd, eps=eps)

    def block(index: int, layer: LayerConfig) -> Block:
        return Block(
            attn_norm=norm(f"blk.{index}.attn_norm"),
            attention=Attention.load(weights, index, config, ropes[layer], scale=scale, qk_norm=True),
            post_attention_norm=norm(f"blk.{index}.post_attention_norm"),
            ffn_norm=norm(f"blk.{index}.ffn_norm"),
            ffn=GatedFFN.load(weights, index, n_embd=n_embd, n_ff=n_ff, activation=kernels.gelu_mul),
            post_ffw_norm=norm(f"blk.{index}.post_ffw_norm"),
        )

    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=[block(index, layer) for index, layer in enumerate(layers)],
        output_norm=norm("output_norm"),
        output=weights.pop("output.weight", config.n_vocab, n_embd) if "output.weight" in weights else token_embd,
        embedding_scale=n_embd**0.5,
    )
