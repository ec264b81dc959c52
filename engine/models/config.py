"""The hyperparameters of a model, resolved once from its metadata."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import FormatError, UnsupportedError
from engine.formats.gguf import GGUFFile


@dataclass(frozen=True)
class RopeConfig:
    """How a layer rotates positions into its queries and keys (RoFormer, arXiv 2104.09864)."""

    n_rot: int  # leading values of a head that are rotated
    base: float
    interleaved: bool  # pairs (x0, x1) as in llama; otherwise halves, as in GPT-NeoX
    scale: float = 1.0  # positions are multiplied by it (linear scaling)


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from layer to layer."""

    rope: RopeConfig
    n_swa: int | None = None  # width of the attention window, None for full attention


@dataclass(frozen=True)
class ModelConfig:
    """The hyperparameters that every transformer has, in llama.cpp's names."""

    architecture: str
    name: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    norm_eps: float
    layers: tuple[LayerConfig, ...]

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return len(self.layers)


class Hyperparameters:
    """Typed access to the metadata keys of one architecture, `{architecture}.{key}`."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self.architecture = gguf.value("general.architecture", str)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self._gguf.value(f"{self.architecture}.{key}", int, default)
        if value < 1:
            raise FormatError(f"The file {self._gguf.path} says {self.architecture}.{key} = {value}.")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return an integer, None where it is absent or 0."""
        return self._gguf.value(f"{self.architecture}.{key}", int, 0) or None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a floating-point number."""
        return self._gguf.value(f"{self.architecture}.{key}", float, default)

    def rope_scale(self) -> float:
        """Return the factor on positions; raises UnsupportedError for scalings other than linear."""
        kind = self._gguf.value(f"{self.architecture}.rope.scaling.type", str, "none")
        if kind not in ("none", "linear"):
            raise UnsupportedError(f"RoPE scaling of the type “{kind}” is not supported.")
        return 1.0 / self.number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0

    def config(self, *, interleaved: bool, layers: tuple[LayerConfig, ...] | None = None) -> ModelConfig:
        """Return the hyperparameters common to all; `layers` where they are not all alike."""
        n_embd, n_head = self.integer("embedding_length"), self.integer("attention.head_count")
        head_dim = self.integer("attention.key_length", n_embd // n_head)
        if layers is None:
            rope = self.rope(interleaved=interleaved)
            layers = (LayerConfig(rope=rope),) * self.integer("block_count")
        n_head_kv = self.integer("attention.head_count_kv", n_head)
        if n_head % n_head_kv:
            raise FormatError(f"The model has {n_head} heads for {n_head_kv} key heads, which doesn't divide.")
        return ModelConfig(
            architecture=self.architecture,
            name=self._gguf.value("general.name", str, self._gguf.path.stem),
            n_ctx_train=self.integer("context_length"),
            n_vocab=len(self._gguf.value("tokenizer.ggml.tokens", list)),
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim_k=head_dim,
            head_dim_v=self.integer("attention.value_length", head_dim),
            norm_eps=self.number("attention.layer_norm_rms_epsilon"),
            layers=layers,
        )

    def rope(self, *, interleaved: bool, base: float | None = None, scale: float | None = None) -> RopeConfig:
        """Return the rotation that the metadata describe, `base` and `scale` overriding theirs."""
        head_dim = self.integer(
            "attention.key_length", self.integer("embedding_length") // self.integer("attention.head_count")
        )
        return RopeConfig(
            n_rot=self.integer("rope.dimension_count", head_dim),
            base=self.number("rope.freq_base", 10000.0) if base is None else base,
            interleaved=interleaved,
            scale=self.rope_scale() if scale is None else scale,
        )
