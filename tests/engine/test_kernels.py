"""Every set of kernels against plain formulas in float64, and their promise of equal bits for any thread count."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels, Matrix, RopeTable
from engine.kernels.kv_types import KV_TYPES, RowSpan, quantize_rows
from engine.kernels.team import ThreadTeam
from engine.quants.matrix import Tensor, load_matrix
from tests.instruction_sets import ALL, make_kernels
from tests.rows import rows_of_every_sort


@pytest.fixture(scope="module", params=ALL, name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix_of(weight: F32, kernels: Kernels) -> Matrix:
    return load_matrix([Tensor(GGMLQuantizationType.F32, weight.shape, weight.reshape(-1).view(np.uint8))], kernels)


@pytest.mark.parametrize(("n_tokens", "n_in", "n_out"), [(1, 64, 1), (1, 576, 4097), (7, 33, 130), (200, 64, 999)])
def test_matmul(kernels: Kernels, n_tokens: int, n_in: int, n_out: int) -> None:
    x, weight = normal(n_tokens, n_in), normal(n_out, n_in, seed=1)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_allclose(kernels.matmul(x, matrix_of(weight, kernels)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", [(16,), (4, 16)])
def test_rms_norm(kernels: Kernels, weights: tuple[int, ...]) -> None:
    x, weight = normal(3, 4, 16), normal(*weights, seed=1)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(kernels.rms_norm(x, weight, 1e-5), expected, rtol=1e-5)


@pytest.mark.parametrize("n", [16, 37])
def test_layer_norm(kernels: Kernels, n: int) -> None:
    x, weight = normal(3, 4, n) + 5, normal(n, seed=1)
    y = x.astype(np.float64)
    deviation = np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)
    expected = (y - y.mean(axis=-1, keepdims=True)) / deviation * weight
    np.testing.assert_allclose(kernels.layer_norm(x, weight, 1e-5), expected, rtol=1e-4, atol=1e-5)


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
    q: F32,
    k: F32,
    v: F32,
    span: RowSpan,
    *,
    scale: float,
    n_swa: int | None,
    softcap: float | None = None,
    sinks: F32 | None = None,
) -> NDArray[np.float64]:
    group = q.shape[1] // k.shape[1]
    out = np.zeros((len(q), q.shape[1], v.shape[2]))
    for i in range(len(q)):
        own = span.end - len(q) + i
        seen = [j for j in range(span.first, own + 1) if n_swa is None or own - j < n_swa]
        for head in range(q.shape[1]):
            scores = k[seen, head // group].astype(np.float64) @ q[i, head] * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head]))
            out[i, head] = weights / total @ v[seen, head // group]
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("n_tokens", "first", "end", "start", "n_swa"),
    [(1, 0, 1, 0, None), (1, 0, 41, 0, None), (9, 0, 9, 0, None), (300, 0, 317, 0, None), (1, 0, 10, 31, 10),
     (9, 0, 18, 31, 10), (300, 0, 300, 0, 10), (300, 0, 309, 91, 10), (5, 0, 8, 0, 10), (130, 0, 135, 0, 200),
     (1, 31, 41, 0, 10), (9, 31, 49, 20, 10), (300, 1, 310, 0, 10), (1, 7, 300, 0, None), (30, 7, 300, 0, None)],
)  # fmt: skip
def test_attention(
    kernels: Kernels, n_tokens: int, first: int, end: int, start: int, n_swa: int | None, dtype: type
) -> None:
    q, span = normal(n_tokens, 6, 8), RowSpan(first, end, start)
    k, v = (normal(end + 40, 2, 8, seed=seed).astype(dtype) for seed in (1, 2))
    for rows in (k, v):
        rows[:first] = rows[end:] = np.nan
    expected = attention_by_definition(q, k, v, span, scale=0.3, n_swa=n_swa)
    ours = kernels.attention(q, k, v, span, scale=0.3, n_swa=n_swa)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_tokens", [1, 150])
@pytest.mark.parametrize("sinks", [None, [-3.0, 0.0, 3.0, 9.0, -50.0, 1.0]])
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_attention_with_bounded_scores_and_sinks(
    kernels: Kernels, n_tokens: int, sinks: list[float] | None, softcap: float | None
) -> None:
    q, k, v = normal(n_tokens, 6, 8), normal(n_tokens + 20, 2, 8, seed=1), normal(n_tokens + 20, 2, 8, seed=2)
    span, how = RowSpan(end=len(k)), {"scale": 0.3, "n_swa": 15, "softcap": softcap}
    how["sinks"] = None if sinks is None else np.array(sinks, np.float32)
    expected = attention_by_definition(q, k, v, span, **how)
    np.testing.assert_allclose(kernels.attention(q, k, v, span, **how), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [0, 1, 20])
def test_rows_are_stored_at_the_end_of_the_span(kernels: Kernels, kv_type: str, n_tokens: int) -> None:
    qkv = normal(n_tokens, 224)
    for x in (qkv[:, 32:160].reshape(n_tokens, 2, 64), qkv[:, :128].reshape(n_tokens, 2, 64).copy()):
        expected = quantize_rows(normal(60, 2, 64, seed=1), KV_TYPES[kv_type])
        rows = expected.copy()
        kernels.store_rows(x, rows, RowSpan(first=9, end=37, start=100))
        expected[37 - n_tokens : 37] = quantize_rows(x, KV_TYPES[kv_type])
        assert rows.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_rows_of_every_sort_are_stored_bit_by_bit_as_they_are_quantized(kernels: Kernels, kv_type: str) -> None:
    x = rows_of_every_sort()
    expected = quantize_rows(x, KV_TYPES[kv_type])
    rows = np.zeros_like(expected)
    for first in (0, 100):
        kernels.store_rows(x[first : first + 100], rows, RowSpan(end=first + 100))
    for i in range(200, len(x)):
        kernels.store_rows(x[i : i + 1], rows, RowSpan(end=i + 1))
    assert rows.tobytes() == expected.tobytes()


def test_sums_and_products(kernels: Kernels) -> None:
    x, y = normal(40, 50), normal(40, 50, seed=1)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    np.testing.assert_allclose(kernels.add(x, y), wide_x + wide_y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(kernels.add(x, y[3]), wide_x + wide_y[3], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(kernels.add(x, y, scale=-0.3), wide_x - 0.3 * wide_y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(kernels.multiply(x, y), wide_x * wide_y, rtol=1e-6, atol=1e-6)


def test_gated_activations(kernels: Kernels) -> None:
    gate, up = 30 * normal(40, 50), normal(40, 50, seed=1)
    x = gate.astype(np.float64)
    np.testing.assert_allclose(kernels.silu_mul(gate, up), x / (1 + np.exp(-x)) * up, rtol=1e-5, atol=1e-6)
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(kernels.gelu_mul(gate, up), gelu * up, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(kernels.sigmoid_mul(gate, up), 1 / (1 + np.exp(-x)) * up, rtol=1e-5, atol=1e-6)
    g, u = np.minimum(x, 7), np.clip(10 * up, -7, 7)
    swiglu = g / (1 + np.exp(-1.702 * g)) * (u + 1)
    np.testing.assert_allclose(kernels.clamped_swiglu(gate, 10 * up), swiglu, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul", "sigmoid_mul"])
def test_activations_of_extreme_values(kernels: Kernels, name: str) -> None:
    large = np.array([[1e30, 3e38, -1e30, -3e38, 88.0, -88.0, 104.0, -104.0, 1e-44, -1e-44, 1e-30, 0.0]], np.float32)
    x = large.astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
        gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    expected = {"silu_mul": x * sigmoid, "gelu_mul": gelu, "sigmoid_mul": sigmoid}[name]
    with np.errstate(over="ignore"):  # of the reference
        np.testing.assert_allclose(getattr(kernels, name)(large, np.ones_like(large)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul", "sigmoid_mul"])
def test_activations_do_not_hide_what_is_not_a_number(kernels: Kernels, name: str) -> None:
    gate, up = normal(3, 21), normal(3, 21, seed=1)
    gate[0, 3] = gate[1, 20] = up[2, 5] = np.nan
    bad = np.isnan(gate) | np.isnan(up)
    assert np.array_equal(np.isnan(getattr(kernels, name)(gate, up)), bad)


@pytest.mark.parametrize("magnitude", [0.0, 1e-44, 1e-25, 1e15])
def test_rms_norm_of_any_magnitude(kernels: Kernels, magnitude: float) -> None:
    x, weight = normal(3, 37) * np.float32(magnitude), normal(37, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(kernels.rms_norm(x, weight, 1e-6), expected, rtol=1e-5, atol=1e-40)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_norms_and_rotations_keep_what_is_not_finite_in_its_row(kernels: Kernels, value: float) -> None:
    x, weight = normal(3, 2, 37), normal(37, seed=1)
    table = RopeTable(normal(3, 12), normal(3, 12), interleaved=False)
    normed, turned = kernels.rms_norm(x, weight, 1e-6), kernels.rope(x, table)
    x[1, 1, 5] = value
    with np.errstate(invalid="ignore"):  # of the reference
        normed_too, turned_too = kernels.rms_norm(x, weight, 1e-6), kernels.rope(x, table)
    assert not np.isfinite(normed_too[1, 1, 5])
    assert not np.isfinite(turned_too[1, 1, 5])
    others = np.ones((3, 2), bool)
    others[1, 1] = False
    assert np.array_equal(normed_too[others], normed[others])
    assert np.array_equal(turned_too[others], turned[others])


def test_columns_of_a_larger_array_are_taken_as_they_lie(kernels: Kernels) -> None:
    qkv, weight = normal(7, 96), normal(8, seed=1)
    table = RopeTable(normal(7, 4), normal(7, 4, seed=1), interleaved=True)
    heads = qkv[:, 32:64].reshape(7, 4, 8)
    k, v = normal(7, 2, 8, seed=1), normal(7, 2, 8, seed=2)
    span = RowSpan(end=7)
    for operation in (
        lambda x: kernels.rms_norm(x, weight, 1e-6),
        lambda x: kernels.rope(x, table),
        lambda x: kernels.attention(x, k, v, span, scale=0.3, n_swa=None),
    ):
        assert np.array_equal(operation(heads), operation(heads.copy()))
    left, right = qkv[:, :48], qkv[:, 48:]
    for name in ("silu_mul", "gelu_mul", "sigmoid_mul", "add", "multiply"):
        operation = getattr(kernels, name)
        assert np.array_equal(operation(left, right), operation(left.copy(), right.copy()))


@pytest.mark.parametrize("name", ALL)
def test_results_are_equal_bit_by_bit_for_any_number_of_threads(name: str, kernel_cache: Path) -> None:
    x, weight = normal(130, 300), normal(2000, 300, seed=1)
    q, k, v = normal(300, 6, 16), normal(300, 2, 16, seed=1), normal(300, 2, 16, seed=2)
    table, span = RopeTable(normal(300, 8), normal(300, 8, seed=1), interleaved=False), RowSpan(end=300)
    results = []
    for n_threads in (1, 2, 3, 5):
        kernels = make_kernels(name, n_threads=n_threads, cache_folder=kernel_cache)
        matrix = matrix_of(weight, kernels)
        results.append(
            (
                kernels.matmul(x, matrix),
                kernels.matmul(x[:1], matrix),
                kernels.attention(q, k, v, span, scale=0.2, n_swa=None),
                kernels.attention(q[-1:], k, v, span, scale=0.2, n_swa=None),
                kernels.silu_mul(x, x),
                kernels.rms_norm(x, weight[0], 1e-6),
                kernels.rope(q, table),
            )
        )
        kernels.close()
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert np.array_equal(ours, theirs)


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
