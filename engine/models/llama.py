"""Architecture `llama`: Llama 2 and 3, Mistral, SmolLM2, TinyLlama."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import Attention, Block, GatedFFN, Norm, Rope
from engine.models.model import Model
from engine.models.weights import Weights


def load_llama(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config(interleaved=True)
    n_embd, eps = config.n_embd, config.norm_eps
    n_ff = hyperparameters.integer("feed_forward_length")
    rope_config = config.layers[0].rope
    factors = weights.pop("rope_freqs.weight", rope_config.n_rot // 2) if "rope_freqs.weight" in weights else None
    rope = Rope(rope_config, factors)
    token_embd = weights.pop("token_embd.weight", config.n_vocab, n_embd)

    def block(layer: int) -> Block:
        return Block(
            attn_norm=Norm.load(weights, f"blk.{layer}.attn_norm", n_embd, eps=eps),
            attention=Attention.load(weights, layer, config, rope, scale=config.head_dim_k**-0.5),
            ffn_norm=Norm.load(weights, f"blk.{layer}.ffn_norm", n_embd, eps=eps),
            ffn=GatedFFN.load(weights, layer, n_embd=n_embd, n_ff=n_ff, activation=kernels.silu_mul),
        )

    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=[block(layer) for layer in range(config.n_layer)],
        output_norm=Norm.load(weights, "output_norm", n_embd, eps=eps),
        output=weights.pop("output.weight", config.n_vocab, n_embd) if "output.weight" in weights else token_embd,
    )
