"""Model architectures, by their names in GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import xxhash

from engine.errors import FormatError, UnsupportedError, excerpt
from engine.formats.gguf import GGUFFile
from engine.kernels import Kernels
from engine.memory import RecurrentState
from engine.models.cohere2 import load_cohere2
from engine.models.config import Hyperparameters, ModelConfig
from engine.models.falcon_h1 import load_falcon_h1
from engine.models.gemma import load_gemma2, load_gemma3
from engine.models.gemma3n import load_gemma3n
from engine.models.gemma4 import load_gemma4
from engine.models.gpt_oss import load_gpt_oss
from engine.models.granite import load_granite
from engine.models.granite_hybrid import load_granitehybrid
from engine.models.jamba import load_jamba
from engine.models.lfm2 import load_lfm2, load_lfm2moe
from engine.models.llama import load_llama
from engine.models.mamba import load_mamba
from engine.models.mamba2 import load_mamba2
from engine.models.model import Model
from engine.models.nemotron_h import load_nemotron_h
from engine.models.olmo import load_olmo2, load_olmoe
from engine.models.phi3 import load_phi3
from engine.models.qwen import load_qwen2, load_qwen3, load_qwen3moe
from engine.models.qwen3next import load_qwen3next, load_qwen35, load_qwen35moe
from engine.models.rwkv7 import load_rwkv7
from engine.models.smollm3 import load_smollm3
from engine.models.weights import LoadProgress, Weights

__all__ = [
    "ARCHITECTURES",
    "LoadProgress",
    "LoadedModel",
    "Model",
    "ModelConfig",
    "check_architecture",
    "load_model",
]

ARCHITECTURES: dict[str, Callable[[Hyperparameters, Weights, Kernels], Model]] = {
    "cohere2": load_cohere2,
    "falcon-h1": load_falcon_h1,
    "gemma2": load_gemma2,
    "gemma3": load_gemma3,
    "gemma3n": load_gemma3n,
    "gemma4": load_gemma4,
    "gpt-oss": load_gpt_oss,
    "granite": load_granite,
    "granitehybrid": load_granitehybrid,
    "granitemoe": load_granite,
    "jamba": load_jamba,
    "lfm2": load_lfm2,
    "lfm2moe": load_lfm2moe,
    "llama": load_llama,
    "mamba": load_mamba,
    "mamba2": load_mamba2,
    "nemotron_h": load_nemotron_h,
    "olmo2": load_olmo2,
    "olmoe": load_olmoe,
    "phi3": load_phi3,
    "qwen2": load_qwen2,
    "qwen3": load_qwen3,
    "qwen35": load_qwen35,
    "qwen35moe": load_qwen35moe,
    "qwen3moe": load_qwen3moe,
    "qwen3next": load_qwen3next,
    "rwkv7": load_rwkv7,
    "smollm3": load_smollm3,
}

_LEAST_STATE_BYTES = 1 << 24


@dataclass(frozen=True)
class LoadedModel:
    """A model and what identifies it."""

    model: Model
    path: Path
    fingerprint: str  # 32 hexadecimal digits over tensors and metadata: all that decides on the state of a conversation
    tensor_fingerprint: str  # the same over the tensors alone, which is all that slot files before layout 3 noted


def check_architecture(gguf: GGUFFile) -> None:
    """Raise UnsupportedError for an architecture that does not exist here."""
    architecture = Hyperparameters(gguf).architecture
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"The model {gguf.path} has the architecture {excerpt(architecture)}, "
            f"which is not supported; supported are: {', '.join(ARCHITECTURES)}."
        )


def load_model(gguf: GGUFFile, kernels: Kernels, *, progress: LoadProgress | None = None) -> LoadedModel:
    """Load the model of an open GGUF file.

    Raises UnsupportedError for an architecture or tensor type that does not exist here, FormatError for a file
    whose tensors do not fit its metadata.
    """
    check_architecture(gguf)
    hyperparameters = Hyperparameters(gguf)
    weights = Weights(gguf, kernels, progress)
    model = ARCHITECTURES[hyperparameters.architecture](hyperparameters, weights, kernels)
    if not any(model.layer_memories):
        raise UnsupportedError(f"The model {gguf.path} has no layer that remembers tokens, which is not supported.")
    _check_states(gguf, model)
    tensors, metadata = weights.finish(), hyperparameters.metadata.digest()
    fingerprint = xxhash.xxh3_128_hexdigest(bytes.fromhex(tensors) + metadata)
    return LoadedModel(model, gguf.path, fingerprint, tensors)


def _check_states(gguf: GGUFFile, model: Model) -> None:
    """Raise FormatError for a model whose states take more memory than its tensors by far.

    Their size is a product of sizes that each may have few tensors.
    """
    needs = [need for layer in model.layer_memories for need in layer if isinstance(need, RecurrentState)]
    n_values = sum(prod(need.r) + prod(need.s) for need in needs)
    n_bytes = sum(info.nbytes for info in gguf.tensors.values())
    if 4 * n_values > max(_LEAST_STATE_BYTES, 4 * n_bytes):
        raise FormatError(
            f"The file {gguf.path} can't be used: its {model.config.architecture}.ssm.state_size or another size makes "
            f"states of {4 * n_values:,} bytes, with tensors of {n_bytes:,}."
        )
