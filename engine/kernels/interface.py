"""What every set of kernels offers.

Arrays of activations are float32 and contiguous in their last axis. K/V rows are given as the memory keeps them (see
`kv_types`). An array of another dtype is refused with TypeError, one of another shape with ValueError, and so are
numbers and spans of rows that don't exist; one that lies in memory in another way is copied, or refused with
ValueError. For the same inputs, split into the same calls, a set of kernels gives the same bits with any number of
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels.arguments import check_arguments, divides, takes, twice_within
from engine.kernels.kv_types import KVRows, RowSpan
from engine.kernels.team import ThreadTeam

Repeat = Callable[[], None]


class Matrix(ABC):
    """A weight matrix (n_out, n_in) in the layout of the kernels that it was loaded for."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of outputs and of inputs."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of main memory held."""


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
    packs: ClassVar[bool] = False  # whether weights are PackedMatrix, in their own types, or DenseMatrix

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_arguments(cls)

    def __init__(self, *, n_threads: int | None = None) -> None:
        self.team = ThreadTeam(n_threads)
        self.note: str | None = None  # why there are no faster ones if nobody asked for these, or why they begin late

    @property
    def n_threads(self) -> int:
        """Number of threads that compute."""
        return self.team.n_threads

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name what decides on the last bit of results: equal identities give equal bits."""

    def prepare(self, weight: Matrix) -> Matrix:
        """Return a matrix, just loaded, as the other operations want it; what must be compiled is."""
        return weight

    def prepare_attention(self, kv_type: np.dtype[Any]) -> None:  # noqa: B027 - nothing need be done
        """Compile what attention over rows of a K/V type needs, so that the first token need not wait."""

    def record(self, step: Callable[[], F32], *, inputs: Sequence[NDArray[Any]]) -> tuple[F32, Repeat | None]:
        """Return the result of a step and, if these kernels can, what does it again.

        It does so without Python: quicker where the operations are short. It reads the inputs anew, spans of rows too,
        and gives the result in the same array; the states of recurrent layers change places with the ones that
        followed them. None if the step consists of more than operations on its inputs, on weights, and on memory.
        """
        return step(), None

    @takes(x="n_tokens n_in", weight="n_out n_in")
    @abstractmethod
    def matmul(self, x: F32, weight: Matrix) -> F32:
        """Return x @ weight.T for x (n_tokens, n_in) and weight (n_out, n_in): shape (n_tokens, n_out)."""

    @takes(weight="n_out n_in", rows="n_rows")
    @abstractmethod
    def take_rows(self, weight: Matrix, rows: NDArray[np.int32]) -> F32:
        """Return some rows of a matrix, shape (len(rows), n_in): the embeddings of tokens."""

    @takes(x="n_tokens n", y="n_tokens? n")
    @abstractmethod
    def add(self, x: F32, y: F32, *, scale: float = 1.0) -> F32:
        """Return x + scale * y, x (n_tokens, n) and y the same or (n,)."""

    @takes(x="n_tokens n", y="n_tokens? n")
    @abstractmethod
    def multiply(self, x: F32, y: F32) -> F32:
        """Return x * y, x (n_tokens, n) and y the same or (n,)."""

    @takes(x="n_rows n_head_kv head_dim", rows="n_rows_kept n_head_kv head_dim")
    @abstractmethod
    def store_rows(self, x: F32, rows: KVRows, span: RowSpan) -> None:
        """Write x (n_rows, n_head_kv, head_dim) to the last ones of a span of rows, in the K/V type that these have."""

    @takes(x="... m n", weight="m? n")
    @abstractmethod
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """Return x / rms(x) * weight over the last axis (arXiv 1910.07467).

        `weight` has the shape of that axis, or of the last two.
        """

    @takes(x="... m n", weight="m? n")
    @abstractmethod
    def layer_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """Return (x - mean(x)) / std(x) * weight over the last axis (arXiv 1607.06450), like `rms_norm`."""

    @takes(twice_within("n_angles", "head_dim"), x="n_tokens n_head head_dim", table="n_tokens n_angles")
    @abstractmethod
    def rope(self, x: F32, table: RopeTable) -> F32:
        """Return x (n_tokens, n_head, head_dim), the first n_rot values of each head rotated by `table`."""

    @takes(
        divides("n_head_kv", "n_head"),
        q="n_tokens n_head head_dim_k",
        k="n_rows n_head_kv head_dim_k",
        v="n_rows n_head_kv head_dim_v",
        sinks="n_head",
    )
    @abstractmethod
    def attention(
        self,
        q: F32,
        k: KVRows,
        v: KVRows,
        span: RowSpan,
        *,
        scale: float,
        n_swa: int | None,
        softcap: float | None = None,
        sinks: F32 | None = None,
    ) -> F32:
        """Return causal attention of q (n_tokens, n_head, head_dim) over a span of the rows k and v (…, n_head_kv, …).

        The last rows of the span are at the positions of the queries. A query sees the rows at its own and earlier
        positions, with `n_swa` only those less than n_swa back. Heads are grouped (arXiv 2305.13245):
        n_head / n_head_kv queries share a K/V head. Shape of the result: (n_tokens, n_head * head_dim_v).

        `scale` multiplies the products of queries and keys; `softcap` then bounds these scores s to
        softcap * tanh(s / softcap) (arXiv 2408.00118). `sinks` (n_head,) are scores of one more row for each head
        that takes its share of the attention and gives nothing (arXiv 2309.17453).
        """

    @takes(gate="n_tokens n", up="n_tokens n")
    @abstractmethod
    def silu_mul(self, gate: F32, up: F32) -> F32:
        """Return silu(gate) * up (arXiv 2002.05202)."""

    @takes(gate="n_tokens n", up="n_tokens n")
    @abstractmethod
    def gelu_mul(self, gate: F32, up: F32) -> F32:
        """Return gelu(gate) * up, gelu in its tanh form (arXiv 1606.08415)."""

    @takes(x="n_tokens n_channel", r="n_channel d_conv-1", weight="n_channel d_conv", bias="n_channel")
    @abstractmethod
    def short_conv(
        self, x: F32, r: F32, weight: F32, *, bias: F32 | None = None, silu: bool = False
    ) -> tuple[F32, F32]:
        """Return the causal convolution of each channel of x (n_tokens, n_channel), and the inputs to remember.

        `weight` is (n_channel, d_conv), its last column for the token itself; r (n_channel, d_conv - 1) holds the
        inputs before x, the oldest first, and so does the second result after x. `bias` (n_channel,) is added, then
        silu applied.
        """

    @takes(
        divides("n_head_k", "n_head_v"),
        q="n_tokens n_head_k head_dim_k",
        k="n_tokens n_head_k head_dim_k",
        v="n_tokens n_head_v head_dim_v",
        alpha="n_tokens n_head_v",
        beta="n_tokens n_head_v",
        s="n_head_v head_dim_v head_dim_k",
        a="n_head_v",
        dt_bias="n_head_v",
    )
    @abstractmethod
    def gated_delta_net(
        self,
        q: F32,
        k: F32,
        v: F32,
        *,
        alpha: F32,
        beta: F32,
        s: F32,
        a: F32,
        dt_bias: F32,
        eps: float,
    ) -> tuple[F32, F32]:
        """Return the outputs (n_tokens, n_head_v, head_dim_v) of the gated delta rule, and the state after them.

        q and k are (n_tokens, n_head_k, head_dim_k), v is (n_tokens, n_head_v, head_dim_v); value head h takes query
        and key of head h modulo n_head_k. Both are divided by sqrt(x · x + eps), q also by sqrt(head_dim_k). alpha
        and beta are (n_tokens, n_head_v), a and dt_bias (n_head_v,). Each head updates its state s
        (n_head_v, head_dim_v, head_dim_k), given before and returned after the tokens, by (arXiv 2412.06464)

            s = g s;  s = s + sigmoid(beta) (v - s k) k^T  with  g = exp(a softplus(alpha + dt_bias))

        and its output is s q.
        """

    @takes(
        divides("n_group", "n_head"),
        x="n_tokens n_head head_dim",
        b="n_tokens n_group d_state",
        c="n_tokens n_group d_state",
        dt="n_tokens n_head",
        s="n_head head_dim d_state",
        a="n_head",
        d="n_head",
        dt_bias="n_head",
    )
    @abstractmethod
    def ssd_scan(self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32) -> tuple[F32, F32]:
        """Return the outputs (n_tokens, n_head, head_dim) of a state space with one decay per head, and its state.

        x is (n_tokens, n_head, head_dim), b and c are (n_tokens, n_group, d_state) and shared by n_head / n_group
        heads, dt is (n_tokens, n_head); a, d and dt_bias are (n_head,). Each head updates its state s
        (n_head, head_dim, d_state), given before and returned after the tokens, by (Mamba-2, arXiv 2405.21060)

            s = exp(a δ) s + δ x b^T  with  δ = softplus(dt + dt_bias)

        and its output is s c + d x.
        """

    @takes(
        x="n_tokens n_channel",
        b="n_tokens d_state",
        c="n_tokens d_state",
        dt="n_tokens n_channel",
        s="n_channel d_state",
        a="n_channel d_state",
        d="n_channel",
        dt_bias="n_channel",
    )
    @abstractmethod
    def selective_scan(
        self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32
    ) -> tuple[F32, F32]:
        """Return the outputs (n_tokens, n_channel) of a state space with a decay for each value, and its state.

        x and dt are (n_tokens, n_channel), b and c (n_tokens, d_state), a (n_channel, d_state), d and dt_bias
        (n_channel,); the state s (n_channel, d_state) is given before and returned after the tokens. As `ssd_scan`
        with heads of one channel, but for a (Mamba, arXiv 2312.00752).
        """

    @takes(
        r="n_tokens n_head head_dim",
        k="n_tokens n_head head_dim",
        v="n_tokens n_head head_dim",
        log_w="n_tokens n_head head_dim",
        a="n_tokens n_head head_dim",
        b="n_tokens n_head head_dim",
        s="n_head head_dim head_dim",
    )
    @abstractmethod
    def wkv7(self, r: F32, k: F32, v: F32, *, log_w: F32, a: F32, b: F32, s: F32) -> tuple[F32, F32]:
        """Return the outputs (n_tokens, n_head, head_dim) of RWKV-7's recurrence (arXiv 2503.14456), and its state.

        All are (n_tokens, n_head, head_dim) but for the state s (n_head, head_dim, head_dim), given before and
        returned after the tokens; log_w is not below -1. Each head updates its state by

            s = s diag(exp(log_w)) + s a b^T + v k^T

        and its output is s r.
        """

    @takes(gate="n_tokens n", up="n_tokens n")
    @abstractmethod
    def sigmoid_mul(self, gate: F32, up: F32) -> F32:
        """Return sigmoid(gate) * up."""

    @takes(gate="n_tokens n", up="n_tokens n")
    @abstractmethod
    def clamped_swiglu(self, gate: F32, up: F32) -> F32:
        """Return g * sigmoid(1.702 g) * (u + 1), g and u being gate and up kept below 7, u above -7 (gpt-oss)."""

    def close(self) -> None:
        """End the kernels' threads."""
        self.team.close()
