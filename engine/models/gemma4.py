"""Architecture `gemma4`: heads of two sizes, experts beside a plain network, and what it keeps of Gemma 3n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels
from engine.memory import LayerMemory
from engine.models.config import AttentionConfig, Hyperparameters
from engine.models.layers import Block, FeedForward, GatedFFN, Layer, MoE, Norm, Ubatch
from engine.models.layers.per_layer import PerLayerGate, PerLayerInputs
from engine.models.model import Model
from engine.models.parts import attention_by_layer, share_rows
from engine.models.weights import Weights, constant


@dataclass(frozen=True)
class Gemma4Block:
    """A block, then what the layer sees of the tokens themselves, then a scale of all."""

    block: Block
    per_layer: PerLayerGate | None
    output_scale: F32 | None  # (n_embd,), all the same

    @property
    def memory(self) -> Sequence[LayerMemory]:
        return self.block.memory

    def __call__(self, x: F32, ubatch: Ubatch) -> F32:
        x = self.block(x, ubatch)
        if self.per_layer is not None:
            x = ubatch.kernels.add(x, self.per_layer(x, ubatch))
        return x if self.output_scale is None else ubatch.kernels.multiply(x, self.output_scale)


@dataclass(frozen=True)
class Gemma4FFN:
    """A plain network and experts side by side, each with norms of its own, and a router that sees the stream."""

    ffn_norm: Norm
    ffn: FeedForward
    post_ffw_norm_1: Norm
    router_norm: Norm
    pre_ffw_norm_2: Norm
    experts: MoE
    expert_scale: F32 | None  # (n_expert,), of what each gives
    post_ffw_norm_2: Norm

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        plain = self.post_ffw_norm_1(kernels, self.ffn(kernels, self.ffn_norm(kernels, x)))
        chosen, shares = self.experts.route(kernels, self.router_norm(kernels, x))
        if self.expert_scale is not None:
            shares = shares * self.expert_scale[chosen]
        mixed = self.experts.mix(kernels, self.pre_ffw_norm_2(kernels, x), chosen, shares)
        return plain + self.post_ffw_norm_2(kernels, mixed)


def load_gemma4(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config = hyperparameters.config()
    n_embd, eps, n_layer = config.n_embd, config.norm_eps, config.n_layer
    attention = _attention(hyperparameters, weights)
    mixer = attention_by_layer(weights, attention, n_embd=n_embd, qk_norm_eps=eps)
    token_embd, output = weights.embeddings(config.n_vocab, n_embd)
    inputs = None
    if n_embd_per_layer := hyperparameters.optional_integer("embedding_length_per_layer_input"):
        inputs = PerLayerInputs.load(weights, token_embd, n_layer=n_layer, n_embd_per_layer=n_embd_per_layer, eps=eps)

    def norm(layer: int, name: str) -> Norm:
        return Norm.load(weights, f"blk.{layer}.{name}", n_embd, eps=eps)

    def plain_ffn(layer: int) -> FeedForward:
        n_ff = hyperparameters.integer("feed_forward_length", layer=layer)
        return GatedFFN.load(weights, layer, n_embd=n_embd, n_ff=n_ff, activation=kernels.gelu_mul)

    def ffn_with_experts(layer: int) -> FeedForward:
        n_ff = hyperparameters.integer("expert_feed_forward_length", layer=layer)
        experts = hyperparameters.experts(n_ff=n_ff, normalize=True)
        router_scale = weights.array(f"blk.{layer}.ffn_gate_inp.scale", n_embd)
        expert_scale = f"blk.{layer}.ffn_down_exps.scale"
        return Gemma4FFN(
            ffn_norm=norm(layer, "ffn_norm"),
            ffn=plain_ffn(layer),
            post_ffw_norm_1=norm(layer, "post_ffw_norm_1"),
            router_norm=Norm(router_scale * np.float32(n_embd**-0.5), eps),
            pre_ffw_norm_2=norm(layer, "pre_ffw_norm_2"),
            experts=MoE.load(weights, layer, experts, n_embd=n_embd, activation=kernels.gelu_mul),
            expert_scale=weights.array(expert_scale, experts.n_expert) if expert_scale in weights else None,
            post_ffw_norm_2=norm(layer, "post_ffw_norm_2"),
        )

    def output_scale(layer: int) -> F32 | None:
        name = f"blk.{layer}.layer_output_scale.weight"
        return constant(np.repeat(weights.array(name, 1), n_embd)) if name in weights else None

    def block(layer: int) -> Layer:
        has_experts = f"blk.{layer}.ffn_gate_inp.weight" in weights
        return Gemma4Block(
            block=Block(
                attn_norm=norm(layer, "attn_norm"),
                mixer=mixer(layer),
                post_attention_norm=norm(layer, "post_attention_norm"),
                ffn_norm=None if has_experts else norm(layer, "ffn_norm"),
                ffn=ffn_with_experts(layer) if has_experts else plain_ffn(layer),
                post_ffw_norm=norm(layer, "post_ffw_norm"),
            ),
            per_layer=None if inputs is None else PerLayerGate.load(weights, layer, inputs),
            output_scale=output_scale(layer),
        )

    return Model(
        config=config,
        kernels=kernels,
        token_embd=token_embd,
        blocks=[block(layer) for layer in range(n_layer)],
        output_norm=Norm.load(weights, "output_norm", n_embd, eps=eps),
        output=output,
        embedding_scale=n_embd**0.5,
        logit_softcap=hyperparameters.optional_number("final_logit_softcapping", 30.0),
    )


def _attention(hyperparameters: Hyperparameters, weights: Weights) -> list[AttentionConfig]:
    """Return each layer's attention; heads with a window have another size, and rotate otherwise."""
    n_swa = hyperparameters.integer("attention.sliding_window")
    head_dim_swa = hyperparameters.integer("attention.key_length_swa")
    rope = hyperparameters.rope(interleaved=False)
    n_rot_swa = hyperparameters.integer("rope.dimension_count_swa", rope.n_rot)
    hyperparameters.check_rotation("rope.dimension_count_swa", n_rot_swa, head_dim_swa)
    base = hyperparameters.number("rope.freq_base_swa", 10000.0)
    rope_swa = replace(hyperparameters.rope(interleaved=False, base=base, scaled=False), n_rot=n_rot_swa)

    def attention(layer: int, *, swa: bool) -> AttentionConfig:
        full = replace(
            hyperparameters.attention(rope=rope, layer=layer, scale=1.0),
            v_norm=True,
            k_as_v=f"blk.{layer}.attn_v.weight" not in weights,
        )
        return (
            replace(full, rope=rope_swa, head_dim_k=head_dim_swa, head_dim_v=head_dim_swa, n_swa=n_swa) if swa else full
        )

    layers = [attention(layer, swa=swa) for layer, swa in enumerate(hyperparameters.swa_layers(1))]
    n_shared = hyperparameters.optional_integer("attention.shared_kv_layers") or 0
    return share_rows(hyperparameters, weights, layers, n_shared)
