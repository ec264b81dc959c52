"""The frame that most architectures share, around mixers and feed-forward networks of their own."""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels import Kernels
from engine.models.config import ModelConfig
from engine.models.layers import Block, FeedForward, Mixer, Norm
from engine.models.model import Model
from engine.models.weights import Weights


def load_stack(
    config: ModelConfig,
    weights: Weights,
    kernels: Kernels,
    *,
    mixer: Callable[[int], Mixer],
    ffn: Callable[[int], FeedForward] | None,
    attn_norm: str | None = "attn_norm.weight",
    post_attention_norm: str | None = None,
    ffn_norm: str | None = "ffn_norm.weight",
    post_ffw_norm: str | None = None,
    output_norm: str = "output_norm.weight",
    norm: type[Norm] = Norm,
    block: type[Block] = Block,
    embedding_scale: float = 1.0,
    residual_scale: float = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
) -> Model:
    """Build a model of blocks of which `mixer` and `ffn` give the parts by layer; `ffn` None for mixers alone.

    `attn_norm` to `output_norm` name the tensors of norms, None where there is none; for the rest see `Block` and
    `Model`.
    """
    n_embd = config.n_embd
    token_embd, output = weights.embeddings(config.n_vocab, n_embd)

    def load_norm(name: str) -> Norm:
        return norm(weights.array(name, n_embd), config.norm_eps)

    def layer_norm(layer: int, name: str | None) -> Norm | None:
        return None if name is None else load_norm(f"blk.{layer}.{name}")

    def load_block(layer: int) -> Block:
        return block(
            attn_norm=layer_norm(layer, attn_norm),
            mixer=mixer(layer),
            post_attention_norm=layer_norm(layer, post_attention_norm),
            ffn_norm=None if ffn is None else layer_norm(layer, ffn_norm),
            ffn=None if ffn is None else ffn(layer),
            post_ffw_norm=layer_norm(layer, post_ffw_norm),
            residual_scale=residual_scale,
        )

    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=[load_block(layer) for layer in range(config.n_layer)],
        output_norm=load_norm(output_norm),
        output=output,
        embedding_scale=embedding_scale,
        logit_scale=logit_scale,
        logit_softcap=logit_softcap,
    )
