"""The NumPy kernels of recurrent layers.

Prefill is done in chunks, within which the recurrence becomes matrix products; a single token is a chunk of one. The
work is cut into tasks by heads or channels, which never depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import F32
from engine.kernels.interface import Kernels

_CHUNK = 64  # tokens: longer chunks mean fewer but, growing with the square, more expensive products
_SCAN_CHUNK = 16  # tokens of a scan whose decays are computed at once
_HEADS = 4  # per task
_CHANNELS = 256  # per task


class RecurrentReference(Kernels):
    """The part of the reference kernels that recurrent layers need."""

    def short_conv(
        self, x: F32, r: F32, weight: F32, *, bias: F32 | None = None, silu: bool = False
    ) -> tuple[F32, F32]:
        n_tokens, n_channel = x.shape
        d_conv = weight.shape[1]
        inputs = np.concatenate([r.T, x])  # (d_conv - 1 + n_tokens, n_channel)
        out = np.empty((n_tokens, n_channel), np.float32)

        def convolve(part: slice) -> None:
            mixed = inputs[:n_tokens, part] * weight[part, 0]
            for i in range(1, d_conv):
                mixed += inputs[i : i + n_tokens, part] * weight[part, i]
            if bias is not None:
                mixed += bias[part]
            out[:, part] = _silu(mixed) if silu else mixed

        self._share(n_tokens, n_channel, _CHANNELS, convolve)
        return out, np.ascontiguousarray(inputs[n_tokens:].T)

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
        n_tokens, n_head_k, head_dim_k = q.shape
        n_head_v = v.shape[1]
        q = _l2_norm(q, eps) * np.float32(head_dim_k**-0.5)
        k = _l2_norm(k, eps)
        log_decay = a * _softplus(alpha + dt_bias)
        beta = _sigmoid(beta)
        out, after = np.empty(v.shape, np.float32), np.empty(s.shape, np.float32)

        def mix(heads: slice) -> None:
            heads_k = np.arange(heads.start, heads.stop) % n_head_k
            state = s[heads]
            for start in range(0, n_tokens, _CHUNK):
                part = slice(start, start + _CHUNK)
                mixed, state = _delta_chunk(
                    q[part, heads_k].swapaxes(0, 1),
                    k[part, heads_k].swapaxes(0, 1),
                    v[part, heads].swapaxes(0, 1),
                    log_decay=log_decay[part, heads].T,
                    beta=beta[part, heads].T[..., None],
                    s=state,
                )
                out[part, heads] = mixed.swapaxes(0, 1)
            after[heads] = state

        self._share(n_tokens, n_head_v, _HEADS, mix)
        return out, after

    def ssd_scan(self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32) -> tuple[F32, F32]:
        n_tokens, n_head, _ = x.shape
        heads_per_group = n_head // b.shape[1]
        dt = _softplus(dt + dt_bias)
        log_decay, dt_x = a * dt, dt[..., None] * x
        out, after = x * d[:, None], np.empty(s.shape, np.float32)

        def scan(heads: slice) -> None:
            groups = np.arange(heads.start, heads.stop) // heads_per_group
            state = s[heads]
            for start in range(0, n_tokens, _CHUNK):
                part = slice(start, start + _CHUNK)
                mixed, state = _ssd_chunk(
                    dt_x[part, heads].swapaxes(0, 1),
                    b[part, groups].swapaxes(0, 1),
                    c[part, groups].swapaxes(0, 1),
                    log_decay[part, heads].T,
                    state,
                )
                out[part, heads] += mixed.swapaxes(0, 1)
            after[heads] = state

        self._share(n_tokens, n_head, _HEADS, scan)
        return out, after

    def selective_scan(
        self, x: F32, b: F32, c: F32, *, dt: F32, s: F32, a: F32, d: F32, dt_bias: F32
    ) -> tuple[F32, F32]:
        n_tokens, n_channel = x.shape
        out, after = np.empty(x.shape, np.float32), np.empty(s.shape, np.float32)

        def scan(channels: slice) -> None:
            state = s[channels]
            for start in range(0, n_tokens, _SCAN_CHUNK):
                part = slice(start, min(start + _SCAN_CHUNK, n_tokens))
                step = _softplus(dt[part, channels] + dt_bias[channels])
                decay = np.exp(step[..., None] * a[channels])  # (n, n_channel, d_state)
                new = (step * x[part, channels])[..., None] * b[part, None]
                for i in range(part.stop - part.start):
                    state = decay[i] * state + new[i]
                    out[start + i, channels] = state @ c[start + i]
                out[part, channels] += d[channels] * x[part, channels]
            after[channels] = state

        self._share(n_tokens, n_channel, _CHANNELS, scan)
        return out, after

    def wkv7(self, r: F32, k: F32, v: F32, *, log_w: F32, a: F32, b: F32, s: F32) -> tuple[F32, F32]:
        n_tokens, n_head, _ = r.shape
        tokens = {"r": r, "k": k, "v": v, "log_w": log_w, "a": a, "b": b}
        out, after = np.empty(r.shape, np.float32), np.empty(s.shape, np.float32)

        def mix(heads: slice) -> None:
            state = s[heads]
            for start in range(0, n_tokens, _CHUNK):
                part = slice(start, start + _CHUNK)
                inputs = {name: x[part, heads].swapaxes(0, 1) for name, x in tokens.items()}
                mixed, state = _wkv7_chunk(**inputs, s=state)
                out[part, heads] = mixed.swapaxes(0, 1)
            after[heads] = state

        self._share(n_tokens, n_head, _HEADS, mix)
        return out, after

    def _share(self, n_tokens: int, n: int, per_task: int, work: Callable[[slice], None]) -> None:
        """Do the work on n heads or channels, in parts of `per_task`."""
        if n_tokens == 1:  # too little work to wake threads for
            work(slice(0, n))
        else:
            parts = [slice(start, min(start + per_task, n)) for start in range(0, n, per_task)]
            self.team.run(len(parts), lambda task: work(parts[task]))


def _delta_chunk(q: F32, k: F32, v: F32, *, log_decay: F32, beta: F32, s: F32) -> tuple[F32, F32]:
    """Return the outputs of one chunk (n_head, n, head_dim_v) and the state after it; see `gated_delta_net`.

    Its n dependent updates of the state, each of rank one, are the solution of a triangular system (the WY form of
    arXiv 2406.06484, with the decays of arXiv 2412.06464). q, k and v are (n_head, n, head_dim), beta (n_head, n, 1).
    """
    total, decay = _decays(log_decay)
    since_start = np.exp(total)[..., None]
    system = np.tril(beta * decay * (k @ k.swapaxes(1, 2)), -1) + np.eye(k.shape[1], dtype=np.float32)
    updates = np.linalg.inv(system) @ (beta * (v - since_start * (k @ s.swapaxes(1, 2))))
    out = since_start * (q @ s.swapaxes(1, 2)) + (decay * (q @ k.swapaxes(1, 2))) @ updates
    until_end = np.exp(total[:, -1:] - total)[..., None]
    return out, since_start[:, -1:] * s + _outer(updates, until_end * k)


def _ssd_chunk(dt_x: F32, b: F32, c: F32, log_decay: F32, s: F32) -> tuple[F32, F32]:
    """Return the outputs of one chunk (n_head, n, head_dim) and the state after it; see `ssd_scan`.

    dt_x is (n_head, n, head_dim), b and c are (n_head, n, d_state).
    """
    total, decay = _decays(log_decay)
    out = (decay * (c @ b.swapaxes(1, 2))) @ dt_x + np.exp(total)[..., None] * (c @ s.swapaxes(1, 2))
    until_end = np.exp(total[:, -1:] - total)[..., None]
    return out, np.exp(total[:, -1])[:, None, None] * s + _outer(until_end * dt_x, b)


def _wkv7_chunk(*, r: F32, k: F32, v: F32, log_w: F32, a: F32, b: F32, s: F32) -> tuple[F32, F32]:
    """Return the outputs of one chunk (n_head, n, head_dim) and the state after it; see `wkv7`.

    As in `_delta_chunk`, but with a decay for each value of a key: it goes into the keys, which grow while the
    queries shrink (by less than exp(_CHUNK), since log_w is not below -1).
    """
    total = np.cumsum(log_w, axis=1, dtype=np.float32)
    grown_k, grown_b = (x * np.exp(-total) for x in (k, b))
    shrunk_r, shrunk_a = r * np.exp(total), a * np.exp(total - log_w)
    system = np.eye(r.shape[1], dtype=np.float32) - np.tril(shrunk_a @ grown_b.swapaxes(1, 2), -1)
    removed = shrunk_a @ s.swapaxes(1, 2) + np.tril(shrunk_a @ grown_k.swapaxes(1, 2), -1) @ v
    removed = np.linalg.inv(system) @ removed
    out = shrunk_r @ s.swapaxes(1, 2)
    out += np.tril(shrunk_r @ grown_k.swapaxes(1, 2)) @ v + np.tril(shrunk_r @ grown_b.swapaxes(1, 2)) @ removed
    until_end = np.exp(total[:, -1:] - total)
    kept = np.exp(total[:, -1])[:, None] * s
    return out, kept + _outer(v, until_end * k) + _outer(removed, until_end * b)


def _outer(x: F32, y: F32) -> F32:
    """Return the sum over tokens of the products of each value of x with each of y, (n_head, dim of x, dim of y)."""
    columns = x.swapaxes(1, 2)
    out: F32 = columns * y if x.shape[1] == 1 else columns @ y  # matmul is slow on single columns
    return out


def _decays(log_decay: F32) -> tuple[F32, F32]:
    """Return the log of the decay from the start to each token (n_head, n), and the decay from j to i (n_head, i, j).

    The latter is 0 where j comes after i.
    """
    total = np.cumsum(log_decay, axis=1, dtype=np.float32)
    n = log_decay.shape[1]
    # masked before exp, which would overflow where time runs backwards
    since = np.where(np.tri(n, dtype=bool), total[:, :, None] - total[:, None], np.float32(-np.inf))
    return total, np.exp(since)


def _l2_norm(x: F32, eps: float) -> F32:
    out: F32 = x / np.sqrt(np.einsum("...i,...i->...", x, x)[..., None] + np.float32(eps))
    return out


def _softplus(x: F32) -> F32:
    return np.logaddexp(x, np.float32(0))


def _sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):  # exp overflows to infinity where the quotient is 0 anyway
        out: F32 = np.reciprocal(1 + np.exp(-x))
    return out


def _silu(x: F32) -> F32:
    return x * _sigmoid(x)
