"""What every set of kernels offers.

Arrays of activations are float32 and C-contiguous. K/V rows are given as the memory keeps them (float16 or
float32). For the same inputs, split into the same calls, a set of kernels gives the same bits with any number
of threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.kernels.team import ThreadTeam

F32 = NDArray[np.float32]
Rows = NDArray[np.floating[Any]]  # K or V rows of one layer, (n_rows, n_head_kv, head_dim)


@dataclass(frozen=True)
class RopeTable:
    """Rotation angles of the positions of one ubatch (RoFormer, arXiv 2104.09864).

    `interleaved` pairs neighbors (x0, x1); otherwise the halves of a head are paired (GPT-NeoX).
    """

    cos: F32  # (n_tokens, n_rot / 2)
    sin: F32  # (n_tokens, n_rot / 2)
    interleaved: bool


class Kernels(ABC):
    """The operations of a forward pass."""

    name: ClassVar[str]

    def __init__(self, *, n_threads: int | None = None) -> None:
        self.team = ThreadTeam(n_threads)

    @property
    def n_threads(self) -> int:
        """Number of threads that compute."""
        return self.team.n_threads

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name what decides on the last bit of results: equal identities give equal bits."""

    @abstractmethod
    def matmul(self, x: F32, weight: F32) -> F32:
        """Return x @ weight.T for x (n_tokens, n_in) and weight (n_out, n_in): shape (n_tokens, n_out)."""

    @abstractmethod
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """Return x / rms(x) * weight over the last axis (arXiv 1910.07467); `weight` has its length."""

    @abstractmethod
    def rope(self, x: F32, table: RopeTable) -> F32:
        """Return x (n_tokens, n_head, head_dim), the first n_rot values of each head rotated by `table`."""

    @abstractmethod
    def attention(
        self, q: F32, k: Rows, v: Rows, *, q_start: int, k_start: int, scale: float, n_swa: int | None
    ) -> F32:
        """Return causal attention of q (n_tokens, n_head, head_dim) over rows k and v (n_rows, n_head_kv, …).

        Query i has position q_start + i, row j has position k_start + j; a query sees the rows at its own and
        earlier positions, with `n_swa` only those less than n_swa back. Heads are grouped (arXiv 2305.13245):
        n_head / n_head_kv queries share a K/V head. Shape of the result: (n_tokens, n_head * head_dim_v).
        """

    @abstractmethod
    def silu_mul(self, gate: F32, up: F32) -> F32:
        """Return silu(gate) * up (arXiv 2002.05202)."""

    @abstractmethod
    def gelu_mul(self, gate: F32, up: F32) -> F32:
        """Return gelu(gate) * up, gelu in its tanh form (arXiv 1606.08415)."""

    def close(self) -> None:
        """End the kernels' threads."""
        self.team.close()
