"""Rotary position embedding (RoFormer, arXiv 2104.09864), and how it is stretched to longer contexts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import RopeTable
from engine.models.config import RopeConfig, YarnConfig
from engine.models.weights import Weights


class Rope:
    """Rotation angles by position. `factors` (n_rot / 2) divide the frequencies (Llama 3, LongRoPE)."""

    def __init__(self, config: RopeConfig, factors: F32 | None = None) -> None:
        self.config = config
        exponents = np.arange(0, config.n_rot, 2, dtype=np.float64) / config.n_rot
        frequencies = config.base**-exponents
        if factors is not None:
            frequencies = frequencies / factors
        unscaled = _unscaled(config, config.yarn) if config.yarn is not None else 0.0
        self._frequencies = frequencies * (config.scale * (1 - unscaled) + unscaled)

    @classmethod
    def load(cls, weights: Weights, config: RopeConfig) -> Rope:
        """Take the factors on the frequencies where the file has them: Llama 3's, or LongRoPE's (arXiv 2402.13753).

        LongRoPE has two sets, for short and long contexts. Rows rotated by one are of no use to the other: which one
        it is depends on the model alone, so that a conversation may outgrow any length.
        """
        n = config.n_rot // 2
        if not config.has_factors:
            return cls(config)
        if "rope_freqs.weight" in weights:
            return cls(config, weights.array("rope_freqs.weight", n))
        if "rope_factors_long.weight" in weights:
            long, short = (weights.array(f"rope_factors_{kind}.weight", n) for kind in ("long", "short"))
            return cls(config, long if config.extended else short)
        return cls(config)

    def table(self, start: int, n: int) -> RopeTable:
        """Return the angles of the positions start .. start + n - 1."""
        angles = np.arange(start, start + n)[:, None] * self._frequencies  # (n, n_rot / 2)
        magnitude = self.config.magnitude
        return RopeTable(
            cos=(np.cos(angles) * magnitude).astype(np.float32),
            sin=(np.sin(angles) * magnitude).astype(np.float32),
            interleaved=self.config.interleaved,
        )


def _unscaled(config: RopeConfig, yarn: YarnConfig) -> NDArray[np.float64]:
    """Return to which part each frequency stays unscaled, (n_rot / 2,): 1 for the fast ones, 0 for the slow."""

    def index(rotations: float) -> float:
        """Return the index of the frequency that turns so many times in n_ctx_orig tokens."""
        return config.n_rot * math.log(yarn.n_ctx_orig / (rotations * 2 * math.pi)) / (2 * math.log(config.base))

    low = max(0, math.floor(index(yarn.beta_fast)))
    high = min(config.n_rot - 1, math.ceil(index(yarn.beta_slow)))
    return 1 - np.clip((np.arange(config.n_rot // 2) - low) / max(0.001, high - low), 0, 1)
