"""Architecture `mamba2`: state spaces alone (arXiv 2405.21060)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers.mamba import Mamba2
from engine.models.model import Model
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_mamba2(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters)

    def mixer(layer: int) -> Mamba2:
        return Mamba2.load(weights, layer, ssm, n_embd=config.n_embd, eps=config.norm_eps)

    return load_stack(config, weights, kernels, mixer=mixer, ffn=None)
