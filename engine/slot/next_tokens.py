"""The next-token digest of a checkpoint: the self-test of a restored state.

It holds the best candidates for the next token with their logits, and a checksum of all logits. After a restore
the logits are computed again from the checkpoint's hidden state: on the same kernels every bit must agree, on
others the distributions must be close.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.arrays import F32

_N_CANDIDATES = 64
_MAX_KL = 0.05
_HEADER = struct.Struct("<QIH")  # xxh3 of all logits, number of candidates, bytes of the kernels' identity


def logits_digest(logits: F32) -> str:
    """Return the xxh3 of one row of logits (n_vocab), 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(logits, np.float32).data)


@dataclass(frozen=True)
class NextTokens:
    """Candidates (n) in descending order of their logits (n), and the identity of the kernels that computed them."""

    kernels: str
    logits_xxh3: str
    token_ids: NDArray[np.int32]
    logits: F32

    @classmethod
    def of(cls, logits: F32, *, kernels: str) -> NextTokens:
        """Take the digest of one row of logits (n_vocab) that the kernels of this identity computed."""
        n = min(_N_CANDIDATES, len(logits))
        best = np.argpartition(-logits, n - 1)[:n].astype(np.int32)
        best = best[np.lexsort((best, -logits[best]))]
        return cls(kernels, logits_digest(logits), best, logits[best])

    def to_bytes(self) -> bytes:
        """Serialize, little-endian."""
        kernels = self.kernels.encode()
        header = _HEADER.pack(int(self.logits_xxh3, 16), len(self.token_ids), len(kernels))
        return header + kernels + self.token_ids.astype("<i4").tobytes() + self.logits.astype("<f4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> NextTokens:
        """Parse what `to_bytes` wrote; raises ValueError for anything else."""
        if len(data) < _HEADER.size:
            raise ValueError("a next-token digest is too short")
        digest, n, n_name = _HEADER.unpack_from(data)
        start = _HEADER.size + n_name
        if len(data) != start + 8 * n:
            raise ValueError(f"a next-token digest of {len(data)} bytes cannot hold {n} candidates")
        ids, logits = np.frombuffer(data, "<i4", n, start), np.frombuffer(data, "<f4", n, start + 4 * n)
        return cls(data[_HEADER.size : start].decode(), f"{digest:016x}", ids, logits)

    def agrees(self, logits: F32, *, kernels: str) -> bool:
        """Whether logits (n_vocab) computed again are the ones that this was taken of.

        Bit by bit on the same kernels; otherwise by the KL divergence over the candidates. A digest of what can't be
        logits agrees with none.
        """
        if kernels == self.kernels:
            return logits_digest(logits) == self.logits_xxh3
        if not self._is_possible(len(logits)):
            return False
        ours, theirs = _log_softmax(logits[self.token_ids]), _log_softmax(self.logits)
        return float(np.sum(np.exp(theirs) * (theirs - ours))) < _MAX_KL

    def _is_possible(self, n_vocab: int) -> bool:
        ids = self.token_ids
        return len(ids) > 0 and ids.min() >= 0 and ids.max() < n_vocab and bool(np.isfinite(self.logits).all())


def _log_softmax(logits: F32) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
