"""The hyperparameters of layers with a state: state spaces and delta nets, which share their keys."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import Hyperparameters
from engine.models.ranges import MAX_WIDTH


@dataclass(frozen=True)
class SSMConfig:
    """One layer, in the names of the `ssm` keys of GGUF."""

    d_conv: int  # width of the convolution
    d_inner: int  # values that the layer mixes
    d_state: int
    dt_rank: int  # number of heads, except in the first Mamba
    n_group: int  # groups of heads that share keys

    @classmethod
    def read(cls, hyperparameters: Hyperparameters, *, in_groups: bool = True) -> SSMConfig:
        """Return what the metadata say; `in_groups` for a layer whose values are divided into heads and groups.

        Raises FormatError where they don't divide.
        """
        config = cls(
            d_conv=hyperparameters.integer("ssm.conv_kernel"),
            d_inner=hyperparameters.integer("ssm.inner_size"),
            d_state=hyperparameters.integer("ssm.state_size"),
            dt_rank=hyperparameters.integer("ssm.time_step_rank"),
            n_group=hyperparameters.integer("ssm.group_count") if in_groups else 1,
        )
        if config.n_channel > 3 * MAX_WIDTH:
            hyperparameters.refuse("ssm.group_count", f"is {config.n_group}, too many for states of {config.d_state}")
        if in_groups and config.d_inner % config.dt_rank:
            hyperparameters.refuse(
                "ssm.time_step_rank", f"is {config.dt_rank}, which doesn't divide the {config.d_inner} values"
            )
        if in_groups and config.dt_rank % config.n_group:
            hyperparameters.refuse(
                "ssm.group_count", f"is {config.n_group}, which doesn't divide the {config.dt_rank} heads"
            )
        return config

    @property
    def n_channel(self) -> int:
        """Number of values that the convolution sees: the layer's values and, for each group, two keys."""
        return self.d_inner + 2 * self.n_group * self.d_state
