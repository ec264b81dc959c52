"""The hyperparameters of a model, resolved once from its metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NoReturn

import numpy as np

from engine.errors import FormatError, UnsupportedError, excerpt
from engine.formats.gguf import GGUFFile
from engine.models.metadata import ShapingMetadata
from engine.models.ranges import MAX_WIDTH, RANGES

_MOST_LETTERS = 200  # of a model's name, which is shown


@dataclass(frozen=True)
class YarnConfig:
    """Where YaRN (arXiv 2309.00071) changes over between scaled and unscaled frequencies."""

    n_ctx_orig: int  # tokens of the training that knew no scaling
    beta_fast: float  # rotations in n_ctx_orig tokens from which on a frequency stays as it is
    beta_slow: float  # rotations below which it is scaled in full


@dataclass(frozen=True)
class RopeConfig:
    """How a layer rotates positions into its queries and keys (RoFormer, arXiv 2104.09864)."""

    n_rot: int  # leading values of a head that are rotated
    base: float
    interleaved: bool  # pairs (x0, x1) as in llama; otherwise halves, as in GPT-NeoX
    scale: float = 1.0  # positions are multiplied by it
    yarn: YarnConfig | None = None  # which frequencies `scale` leaves alone; None if it's all the same to all
    magnitude: float = 1.0  # of the rotated values: their attention is sharper by its square
    has_factors: bool = False  # the file's factors on the frequencies apply, if there are any
    extended: bool = False  # for positions beyond the first training's; decides between two sets of factors (LongRoPE)


@dataclass(frozen=True)
class AttentionConfig:
    """One attention layer."""

    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    scale: float  # of the products of queries and keys
    rope: RopeConfig | None  # None for a layer that does not know positions
    n_swa: int | None = None  # width of the attention window, None for full attention
    softcap: float | None = None  # bound of the scores
    qk_norm_over_heads: bool = False  # norms of queries and keys are taken over all heads at once
    gated: bool = False  # each query comes with a gate for its head's output (arXiv 2505.06708)
    v_norm: bool = False  # values are normed as well, without a weight
    k_as_v: bool = False  # keys serve as values too, before they are normed and rotated
    rows_of: int | None = None  # the earlier layer whose rows are attended to, None for its own


class Gating(IntEnum):
    """What makes shares out of a router's scores; the numbers are those of the key `expert_gating_func`."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_OF_CHOSEN = 3  # over the chosen experts alone


@dataclass(frozen=True)
class ExpertsConfig:
    """The experts of a layer, and how a router spreads a token over them."""

    n_expert: int
    n_expert_used: int
    n_ff: int  # of each expert
    gating: Gating
    normalize: bool  # the shares of the chosen experts are made to sum up to 1
    scale: float = 1.0  # of the shares
    n_ff_shared: int | None = None  # of the expert that all tokens go through, None without one


@dataclass(frozen=True)
class ModelConfig:
    """What every model has, in llama.cpp's names."""

    architecture: str
    name: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int
    norm_eps: float


class Hyperparameters:
    """Typed access to the metadata keys of one architecture, `{architecture}.{key}`.

    Numbers are within their `RANGES`. What is not, or of another type, raises FormatError, which names the key.
    """

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self.metadata = ShapingMetadata(gguf)
        self.architecture = self.metadata.value("general.architecture", str)

    @property
    def n_layer(self) -> int:
        """Number of blocks."""
        return self.integer("block_count")

    def integer(self, key: str, default: int | None = None, *, layer: int | None = None) -> int:
        """Return a positive integer; of `layer` where the file has one for each."""
        value = self._layer_value(key, layer)
        if value is None:
            value = self.metadata.value(f"{self.architecture}.{key}", int, default)
        self._check(key, value, layer)
        return value

    def optional_integer(self, key: str, *, layer: int | None = None) -> int | None:
        """Return an integer, None where it is absent or 0; of `layer` where the file has one for each."""
        value = self._layer_value(key, layer)
        if value is None:
            value = self.metadata.value(f"{self.architecture}.{key}", int, 0)
        if value == 0:
            return None
        self._check(key, value, layer)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a floating-point number."""
        value = self.metadata.value(f"{self.architecture}.{key}", float, default)
        self._check(key, value)
        return value

    def optional_number(self, key: str, default: float = 0.0) -> float | None:
        """Return a floating-point number, None where it is 0."""
        value = self.metadata.value(f"{self.architecture}.{key}", float, default)
        if value == 0:
            return None
        self._check(key, value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self.metadata.value(f"{self.architecture}.{key}", str, default)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        return self.metadata.value(f"{self.architecture}.{key}", bool, default)

    def config(self) -> ModelConfig:
        """Return the hyperparameters common to all."""
        rms_norm = f"{self.architecture}.attention.layer_norm_rms_epsilon" in self.metadata
        return ModelConfig(
            architecture=self.architecture,
            name=" ".join(self._gguf.value("general.name", str, self._gguf.path.stem).split())[:_MOST_LETTERS],
            n_ctx_train=self.integer("context_length"),
            n_vocab=len(self._gguf.value("tokenizer.ggml.tokens", list)),
            n_embd=self.integer("embedding_length"),
            n_layer=self.n_layer,
            norm_eps=self.number(f"attention.layer_norm_{'rms_' if rms_norm else ''}epsilon"),
        )

    def attention(
        self,
        *,
        rope: RopeConfig | None,
        layer: int | None = None,
        scale: float | None = None,
        n_swa: int | None = None,
        softcap: float | None = None,
        qk_norm_over_heads: bool = False,
        gated: bool = False,
    ) -> AttentionConfig:
        """Return an attention layer's shape; `scale` is by default that of its head's size."""
        n_head = self.integer("attention.head_count", layer=layer)
        n_head_kv = self.integer("attention.head_count_kv", n_head, layer=layer)
        if n_head % n_head_kv:
            self.refuse("attention.head_count_kv", f"is {n_head_kv}, which doesn't divide the {n_head} heads")
        head_dim = self.head_dim(layer=layer)
        head_dim_v = self.integer("attention.value_length", head_dim)
        if n_head * max(head_dim, head_dim_v) > MAX_WIDTH:
            self.refuse(
                "attention.head_count", f"is {n_head}, too many for heads of {max(head_dim, head_dim_v)} values"
            )
        if gated and head_dim_v != head_dim:
            self.refuse("attention.value_length", f"is {head_dim_v}, but the gates have {head_dim} values as the keys")
        if rope is not None and rope.n_rot > head_dim:
            self.refuse("rope.dimension_count", f"is {rope.n_rot}, more than the {head_dim} values of a head")
        return AttentionConfig(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim_k=head_dim,
            head_dim_v=head_dim_v,
            scale=head_dim**-0.5 if scale is None else scale,
            rope=rope,
            n_swa=n_swa,
            softcap=softcap,
            qk_norm_over_heads=qk_norm_over_heads,
            gated=gated,
        )

    def swa_layers(self, pattern: int) -> list[bool]:
        """Return which layers have a sliding window: all but every `pattern`-th, where the file does not say it."""
        key = "attention.sliding_window_pattern"
        value = self.metadata.get(f"{self.architecture}.{key}")
        value = pattern if value is None else value
        if isinstance(value, int) and not isinstance(value, bool):
            if value:
                self._check(key, value)
            return [value == 0 or layer % value < value - 1 for layer in range(self.n_layer)]
        if not isinstance(value, np.ndarray) or len(value) != self.n_layer:
            self.refuse(key, "doesn't say of each layer whether it has a sliding window")
        return [bool(flag) for flag in value]

    def experts(
        self, *, n_ff: int, normalize: bool, gating: Gating = Gating.SOFTMAX, n_ff_shared: int | None = None
    ) -> ExpertsConfig:
        """Return the experts of a layer, `gating` standing in where the file doesn't say it."""
        n_expert, n_expert_used = self.integer("expert_count"), self.integer("expert_used_count")
        if n_expert_used > n_expert:
            self.refuse("expert_used_count", f"is {n_expert_used}, of {n_expert} experts")
        number = self.integer("expert_gating_func", gating)
        if number not in set(Gating):
            raise UnsupportedError(f"The experts' gating function {number} is not supported.")
        return ExpertsConfig(
            n_expert=n_expert,
            n_expert_used=n_expert_used,
            n_ff=n_ff,
            gating=Gating(number),
            normalize=normalize,
            scale=self.optional_number("expert_weights_scale") or 1.0,
            n_ff_shared=n_ff_shared,
        )

    def head_dim(self, *, layer: int | None = None) -> int:
        """Return the length of a key."""
        n_head, n_embd = self.integer("attention.head_count", layer=layer), self.integer("embedding_length")
        if n_head > n_embd and f"{self.architecture}.attention.key_length" not in self.metadata:
            self.refuse("attention.head_count", f"is {n_head}, more than the {n_embd} values to be shared among them")
        return self.integer("attention.key_length", n_embd // n_head)

    def rope(
        self, *, interleaved: bool, base: float | None = None, scaled: bool = True, layer: int | None = None
    ) -> RopeConfig:
        """Return the rotation that the metadata describe, `base` in place of theirs, `scaled` False for none of theirs.

        Raises UnsupportedError for a kind of scaling that does not exist here, FormatError for what no head can do.
        """
        kind = self.text("rope.scaling.type", "linear")
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise UnsupportedError(f"RoPE scaling of the type {excerpt(kind)} is not supported.")
        head_dim = self.head_dim(layer=layer)
        plain = RopeConfig(
            n_rot=self.integer("rope.dimension_count", head_dim),
            base=self.number("rope.freq_base", 10000.0) if base is None else base,
            interleaved=interleaved,
        )
        self.check_rotation("rope.dimension_count", plain.n_rot, head_dim)
        if not scaled:
            return plain
        n_ctx_train = self.integer("context_length")
        n_ctx_orig = self.integer("rope.scaling.original_context_length", n_ctx_train)
        factor = self.optional_number("rope.scaling.factor") or self.optional_number("rope.scale_linear") or 1.0
        magnitude, yarn = self.number("rope.scaling.attn_factor", 1.0), None
        if kind == "yarn":
            yarn = YarnConfig(
                n_ctx_orig=n_ctx_orig,
                beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            )
            magnitude *= 0.1 * math.log(max(factor, 1.0)) + 1.0
        return replace(
            plain,
            scale=1.0 if kind == "none" else 1.0 / factor,
            yarn=yarn,
            magnitude=magnitude,
            has_factors=True,
            extended=n_ctx_train > n_ctx_orig,
        )

    def _layer_value(self, key: str, layer: int | None) -> int | None:
        """Return the value of `layer` where the file has a list of them, else None."""
        values = self.metadata.get(f"{self.architecture}.{key}")
        if layer is None or not isinstance(values, list | np.ndarray):
            return None
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biu":
            self.refuse(key, "has no whole number for each layer")
        if not layer < len(values) <= self.n_layer:
            self.refuse(key, f"has {len(values)} numbers for {self.n_layer} layers")
        return int(values[layer])

    def check_rotation(self, key: str, n_rot: int, head_dim: int) -> None:
        """Refuse to rotate n_rot values of a head, which `key` gives, if no head has so many, or they are no pairs."""
        if n_rot > head_dim or n_rot % 2:
            self.refuse(key, f"is {n_rot}, which are no pairs of the {head_dim} values of a head")

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise FormatError with what is wrong with what a key says."""
        raise FormatError(f"The file {self._gguf.path} can't be used: its {self.architecture}.{key} {problem}.")

    def _check(self, key: str, value: float, layer: int | None = None) -> None:
        """Refuse a value that is not in the range of its key."""
        if value not in RANGES[key]:
            where = "" if layer is None else f" in layer {layer}"
            self.refuse(key, f"is {value}{where}, not {RANGES[key]}")
