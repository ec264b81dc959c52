"""Model architectures, by their names in GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UnsupportedError
from engine.formats.gguf import GGUFFile
from engine.kernels import Kernels
from engine.models.config import Hyperparameters, ModelConfig
from engine.models.gemma3 import load_gemma3
from engine.models.llama import load_llama
from engine.models.model import Model, TokenIds
from engine.models.weights import LoadProgress, Weights

__all__ = [
    "ARCHITECTURES",
    "LoadProgress",
    "LoadedModel",
    "Model",
    "ModelConfig",
    "TokenIds",
    "check_architecture",
    "load_model",
]

ARCHITECTURES: dict[str, Callable[[Hyperparameters, Weights, Kernels], Model]] = {
    "gemma3": load_gemma3,
    "llama": load_llama,
}


@dataclass(frozen=True)
class LoadedModel:
    """A model and what identifies it."""

    model: Model
    path: Path
    fingerprint: str  # see Weights.finish


def check_architecture(gguf: GGUFFile) -> None:
    """Raise UnsupportedError for an architecture that does not exist here."""
    architecture = Hyperparameters(gguf).architecture
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"The model {gguf.path} has the architecture “{architecture}”, "
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
    return LoadedModel(model=model, path=gguf.path, fingerprint=weights.finish())
