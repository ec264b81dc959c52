"""The kernels of recurrent layers against their definitions, token by token in float64."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels
from tests.instruction_sets import ALL, make_kernels

F64 = NDArray[np.float64]
Results = tuple[NDArray[np.floating], NDArray[np.floating]]
N_TOKENS = 150  # more than two chunks


@pytest.fixture(scope="module", params=ALL, name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(request.param, n_threads=2, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def softplus(x: F64) -> F64:
    return np.log1p(np.exp(x))


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def short_conv(*, x: F64, r: F64, weight: F64, bias: F64, silu: bool) -> Results:
    out = np.empty_like(x)
    window = np.concatenate([np.zeros((len(r), 1)), r], axis=1)
    for i, token in enumerate(x):
        window = np.concatenate([window[:, 1:], token[:, None]], axis=1)
        out[i] = (window * weight).sum(axis=1) + bias
    return out * sigmoid(out) if silu else out, window[:, 1:]


def gated_delta_net(
    *, q: F64, k: F64, v: F64, alpha: F64, beta: F64, s: F64, a: F64, dt_bias: F64, eps: float
) -> Results:
    s, out = s.copy(), np.empty_like(v)
    for i in range(len(v)):
        for head in range(v.shape[1]):
            query, key = (x[i, head % q.shape[1]] for x in (q, k))
            query, key = (x / np.sqrt(x @ x + eps) for x in (query, key))
            s[head] *= np.exp(a[head] * softplus(alpha[i, head] + dt_bias[head]))
            s[head] += sigmoid(beta[i, head]) * np.outer(v[i, head] - s[head] @ key, key)
            out[i, head] = s[head] @ query / np.sqrt(len(query))
    return out, s


def ssd_scan(*, x: F64, b: F64, c: F64, dt: F64, s: F64, a: F64, d: F64, dt_bias: F64) -> Results:
    s, out = s.copy(), np.empty_like(x)
    for i in range(len(x)):
        for head in range(x.shape[1]):
            group = head // (x.shape[1] // b.shape[1])
            step = softplus(dt[i, head] + dt_bias[head])
            s[head] = np.exp(a[head] * step) * s[head] + step * np.outer(x[i, head], b[i, group])
            out[i, head] = s[head] @ c[i, group] + d[head] * x[i, head]
    return out, s


def selective_scan(*, x: F64, b: F64, c: F64, dt: F64, s: F64, a: F64, d: F64, dt_bias: F64) -> Results:
    out = np.empty_like(x)
    for i in range(len(x)):
        step = softplus(dt[i] + dt_bias)[:, None]
        s = np.exp(a * step) * s + step * x[i][:, None] * b[i]
        out[i] = s @ c[i] + d * x[i]
    return out, s


def wkv7(*, r: F64, k: F64, v: F64, log_w: F64, a: F64, b: F64, s: F64) -> Results:
    s, out = s.copy(), np.empty_like(v)
    for i in range(len(v)):
        for head in range(v.shape[1]):
            s[head] = (
                s[head] * np.exp(log_w[i, head])
                + np.outer(s[head] @ a[i, head], b[i, head])
                + np.outer(v[i, head], k[i, head])
            )
            out[i, head] = s[head] @ r[i, head]
    return out, s


class Case:
    """One operation: its definition, its inputs by token, the state before, and its parameters."""

    def __init__(
        self, definition: Callable[..., Results], tokens: Mapping[str, F32], state: F32, **parameters: object
    ) -> None:
        self.definition = definition
        self.tokens = tokens
        self.state = state
        self.parameters = parameters
        self._state_name = "r" if definition is short_conv else "s"

    def expected(self) -> Results:
        """Return what the definition gives."""
        arguments = {**self.tokens, self._state_name: self.state, **self.parameters}
        return self.definition(
            **{name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        )

    def run(self, kernels: Kernels, start: int = 0, stop: int = N_TOKENS, state: F32 | None = None) -> tuple[F32, F32]:
        """Return what the kernels give for some of the tokens."""
        tokens = {name: x[start:stop] for name, x in self.tokens.items()}
        before = {self._state_name: self.state if state is None else state}
        return getattr(kernels, self.definition.__name__)(**tokens, **before, **self.parameters)


def _random(seed: int) -> Callable[..., F32]:
    random = np.random.default_rng(seed)
    return lambda *shape: random.standard_normal(shape, np.float32)


def _cases() -> dict[str, Case]:
    new = _random(1)
    n = N_TOKENS

    def convolution(n_channel: int, width: int, *, silu: bool) -> Case:
        r, weight, bias = new(n_channel, width - 1), new(n_channel, width), new(n_channel)
        return Case(short_conv, {"x": new(n, n_channel)}, r, weight=weight, bias=bias, silu=silu)

    def state_space(n_head: int, n_group: int, size: tuple[int, int] = (16, 8)) -> Case:
        b, c = new(n, n_group, size[1]), new(n, n_group, size[1])
        tokens = {"x": new(n, n_head, size[0]), "b": b, "c": c, "dt": new(n, n_head)}
        return Case(
            ssd_scan, tokens, new(n_head, *size), a=-np.exp(new(n_head)), d=new(n_head), dt_bias=new(n_head) - 2
        )

    def delta(n_head_k: int, n_head_v: int, size: tuple[int, int] = (16, 8), repeat: bool = False) -> Case:
        q, k = new(n, n_head_k, size[1]), new(n, n_head_k, size[1])
        tokens = {
            "q": q,
            "k": np.repeat(k[:1], n, axis=0) if repeat else k,  # the worst case of the triangular system
            "v": new(n, n_head_v, size[0]),
            "alpha": new(n, n_head_v),
            "beta": new(n, n_head_v) + (5 if repeat else 0),
        }
        a = -np.exp(new(n_head_v)) * (1e-3 if repeat else 1)
        return Case(
            gated_delta_net, tokens, new(n_head_v, *size), a=a.astype(np.float32), dt_bias=new(n_head_v), eps=1e-6
        )

    def receptance(lowest: float) -> Case:
        directions = new(n, 3, 8)
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        tokens = {name: new(n, 3, 8) for name in ("r", "k", "v")}
        tokens |= {"log_w": lowest / (1 + np.exp(-new(n, 3, 8))), "a": -directions}
        return Case(wkv7, tokens | {"b": directions / (1 + np.exp(-new(n, 3, 8)))}, new(3, 8, 8))

    return {
        "convolution": convolution(328, 4, silu=False),
        "convolution with silu": convolution(72, 3, silu=True),
        "convolution of an odd number of channels": convolution(70, 3, silu=True),
        "delta net": delta(4, 4),
        "delta net with shared keys": delta(3, 6),
        "delta net of one key": delta(2, 2, repeat=True),
        "delta net of wide heads": delta(2, 4, (64, 40)),
        "state space": state_space(6, 1),
        "state space in groups": state_space(12, 2),
        "state space of wide heads": state_space(4, 2, (32, 72)),
        "RWKV-7": receptance(-0.6),
        "RWKV-7 with the fastest decay": receptance(-1.0),
        "selective state space": Case(
            selective_scan,
            {"x": new(n, 328), "b": new(n, 8), "c": new(n, 8), "dt": new(n, 328)},
            new(328, 8),
            a=-np.exp(new(328, 8)),
            d=new(328),
            dt_bias=new(328) - 2,
        ),
    }


CASES = _cases()


@pytest.fixture(params=CASES, name="case")
def _case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_chunks_give_what_the_recurrence_gives(case: Case, kernels: Kernels) -> None:
    before = case.state.copy()
    for actual, expected in zip(case.run(kernels), case.expected(), strict=True):
        assert actual.dtype == np.float32
        assert actual.flags.c_contiguous
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    assert np.array_equal(case.state, before)  # the memory still holds it


@pytest.mark.parametrize("size", [1, 63, 64, 65])
def test_any_split_into_ubatches_gives_the_same(case: Case, kernels: Kernels, size: int) -> None:
    parts, state = [], case.state
    for start in range(0, N_TOKENS, size):
        out, state = case.run(kernels, start, start + size, state)
        parts.append(out)
    expected, expected_state = case.expected()
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(state, expected_state, rtol=1e-3, atol=1e-4)


def test_the_number_of_threads_does_not_change_a_bit(case: Case, kernels: Kernels, kernel_cache: Path) -> None:
    alone = make_kernels(kernels.name, n_threads=1, cache_folder=kernel_cache)
    for n_tokens in (1, N_TOKENS):
        for one, many in zip(case.run(alone, stop=n_tokens), case.run(kernels, stop=n_tokens), strict=True):
            assert np.array_equal(one, many)
    alone.close()
