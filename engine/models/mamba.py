"""Architecture `mamba`: the first Mamba (arXiv 2312.00752), and Falcon Mamba (arXiv 2410.05355)."""

from __future__ import annotations

from engine.kernels import Kernels
from engine.models.config import Hyperparameters
from engine.models.layers import Norm
from engine.models.layers.mamba import Mamba
from engine.models.model import Model
from engine.models.ssm_config import SSMConfig
from engine.models.stack import load_stack
from engine.models.weights import Weights


def load_mamba(hyperparameters: Hyperparameters, weights: Weights, kernels: Kernels) -> Model:
    """Build the model out of its tensors."""
    config, ssm = hyperparameters.config(), SSMConfig.read(hyperparameters, in_groups=False)
    norms = None
    if hyperparameters.flag("ssm.dt_b_c_rms", False):  # Falcon Mamba's norms have no weights
        plain = Norm.plain(ssm.d_state, eps=config.norm_eps)
        norms = (Norm.plain(ssm.dt_rank, eps=config.norm_eps), plain, plain)

    def mixer(layer: int) -> Mamba:
        return Mamba.load(weights, layer, ssm, n_embd=config.n_embd, norms=norms)

    return load_stack(config, weights, kernels, mixer=mixer, ffn=None)
