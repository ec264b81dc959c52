"""The reference kernels against plain formulas in float64, and their promise of equal bits for any thread count."""

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import DormouseError
from engine.kernels import Kernels, RopeTable, load_kernels
from engine.kernels.team import ThreadTeam

F32 = NDArray[np.float32]


@pytest.fixture(name="kernels")
def _kernels() -> Kernels:
    return load_kernels("numpy", n_threads=2)


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("n_tokens", "n_in", "n_out"), [(1, 64, 1), (1, 576, 4097), (7, 33, 130), (200, 64, 999)])
def test_matmul(kernels: Kernels, n_tokens: int, n_in: int, n_out: int) -> None:
    x, weight = normal(n_tokens, n_in), normal(n_out, n_in, seed=1)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_allclose(kernels.matmul(x, weight), expected, rtol=1e-4, atol=1e-4)


def test_rms_norm(kernels: Kernels) -> None:
    x, weight = normal(3, 4, 16), normal(16, seed=1)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(kernels.rms_norm(x, weight, 1e-5), expected, rtol=1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_turns_pairs_as_complex_numbers_and_leaves_the_rest(kernels: Kernels, interleaved: bool) -> None:
    x, angles = normal(5, 2, 12), normal(5, 4, seed=1)  # 8 of 12 values are rotated
    table = RopeTable(np.cos(angles), np.sin(angles), interleaved)
    out = kernels.rope(x, table)
    first, second = (x[..., 0:8:2], x[..., 1:8:2]) if interleaved else (x[..., :4], x[..., 4:8])
    turned = (first + 1j * second) * np.exp(1j * angles)[:, None]
    ours = (out[..., 0:8:2], out[..., 1:8:2]) if interleaved else (out[..., :4], out[..., 4:8])
    np.testing.assert_allclose(ours[0], turned.real, atol=1e-5)
    np.testing.assert_allclose(ours[1], turned.imag, atol=1e-5)
    assert np.array_equal(out[..., 8:], x[..., 8:])


def attention_by_definition(
    q: F32, k: F32, v: F32, *, q_start: int, k_start: int, scale: float, n_swa: int | None
) -> NDArray[np.float64]:
    group = q.shape[1] // k.shape[1]
    out = np.zeros((len(q), q.shape[1], v.shape[2]))
    for i in range(len(q)):
        position = q_start + i
        seen = [
            j
            for j in range(len(k))
            if position - (k_start + j) >= 0 and (n_swa is None or position - k_start - j < n_swa)
        ]
        for head in range(q.shape[1]):
            scores = k[seen, head // group].astype(np.float64) @ q[i, head] * scale
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ v[seen, head // group]
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("n_tokens", "q_start", "k_start", "n_swa"),
    [(1, 0, 0, None), (1, 40, 0, None), (9, 0, 0, None), (300, 17, 0, None), (1, 40, 31, 10), (9, 40, 31, 10),
     (300, 0, 0, 10), (300, 100, 91, 10), (5, 3, 0, 10), (130, 5, 0, 200)],
)  # fmt: skip
def test_attention(kernels: Kernels, n_tokens: int, q_start: int, k_start: int, n_swa: int | None, dtype: type) -> None:
    n_rows = q_start + n_tokens - k_start
    q = normal(n_tokens, 6, 8)
    k, v = (normal(n_rows, 2, 8, seed=seed).astype(dtype) for seed in (1, 2))
    where = {"q_start": q_start, "k_start": k_start, "scale": 0.3, "n_swa": n_swa}
    expected = attention_by_definition(q, k, v, **where)
    np.testing.assert_allclose(kernels.attention(q, k, v, **where), expected, rtol=1e-4, atol=1e-5)


def test_gated_activations(kernels: Kernels) -> None:
    gate, up = 30 * normal(40, 50), normal(40, 50, seed=1)
    x = gate.astype(np.float64)
    np.testing.assert_allclose(kernels.silu_mul(gate, up), x / (1 + np.exp(-x)) * up, rtol=1e-5, atol=1e-6)
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(kernels.gelu_mul(gate, up), gelu * up, rtol=1e-4, atol=1e-6)


def test_results_are_equal_bit_by_bit_for_any_number_of_threads() -> None:
    x, weight = normal(130, 300), normal(2000, 300, seed=1)
    q, k, v = normal(300, 6, 16), normal(300, 2, 16, seed=1), normal(300, 2, 16, seed=2)
    results = []
    for n_threads in (1, 2, 3, 5):
        kernels = load_kernels("numpy", n_threads=n_threads)
        attention = kernels.attention(q, k, v, q_start=0, k_start=0, scale=0.2, n_swa=None)
        results.append((kernels.matmul(x, weight), kernels.matmul(x[:1], weight), attention, kernels.silu_mul(x, x)))
        kernels.close()
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert np.array_equal(ours, theirs)


def test_kernels_are_chosen_by_name_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORMOUSE_KERNELS", "numpy")
    assert load_kernels(n_threads=1).name == "numpy"
    monkeypatch.setenv("DORMOUSE_KERNELS", "abacus")
    with pytest.raises(DormouseError, match="abacus"):
        load_kernels()


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_a_team_does_every_task_once(n_threads: int) -> None:
    team, done = ThreadTeam(n_threads), list[int]()
    for n in (0, 1, 2, 100):
        done.clear()
        team.run(n, done.append)
        assert sorted(done) == list(range(n))
    team.close()


def test_a_teams_first_error_reaches_the_caller_and_the_team_goes_on() -> None:
    team = ThreadTeam(3)

    def fail(index: int) -> None:
        if index == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        team.run(20, fail)
    done = list[int]()
    team.run(3, done.append)
    assert sorted(done) == [0, 1, 2]
    team.close()
    assert not [t for t in threading.enumerate() if t in team._threads]
