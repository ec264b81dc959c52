"""Attention of every compiled set of kernels over rows of every K/V type, against the reference kernels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.arrays import F32
from engine.kernels import Kernels
from engine.kernels.kv_types import KV_TYPES, KVRows, RowSpan, quantize_rows
from engine.kernels.reference import ReferenceKernels
from tests.instruction_sets import COMPILED, make_kernels


@pytest.fixture(scope="module", params=COMPILED, name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


@pytest.fixture(scope="module", name="reference")
def _reference() -> Iterator[Kernels]:
    kernels = ReferenceKernels(n_threads=1)
    yield kernels
    kernels.close()


class Case:
    """Queries at the last of some rows."""

    def __init__(
        self,
        *,
        kv_type: str = "f16",
        n_tokens: int,
        n_rows: int,
        start: int = 0,
        heads: tuple[int, int] = (4, 2),
        head_dims: tuple[int, int] = (32, 64),
        **parameters: object,
    ) -> None:
        normal = np.random.default_rng(n_rows).standard_normal
        n_head, n_head_kv = heads
        self.q = normal((n_tokens, n_head, head_dims[0]), np.float32)
        self.k, self.v = (
            quantize_rows(normal((n_rows, n_head_kv, head_dim), np.float32), KV_TYPES[kv_type])
            for head_dim in head_dims
        )
        self.span = RowSpan(end=n_rows, start=start)
        self.parameters: dict[str, Any] = {"scale": 0.4, "n_swa": None, **parameters}

    def run(self, kernels: Kernels) -> F32:
        """Return what the kernels give."""
        return kernels.attention(self.q, self.k, self.v, self.span, **self.parameters)

    def move(self, n_before: int, n_behind: int) -> None:
        """Have so many rows of no numbers before and behind those that are seen."""
        first, end, start = self.span.first, self.span.end, self.span.start
        self.k, self.v = (_amid(rows[first:end], n_before, n_behind) for rows in (self.k, self.v))
        self.span.move(n_before, n_before + end - first, start + first - n_before, n_rows=len(self.k))


def _amid(rows: KVRows, n_before: int, n_behind: int) -> KVRows:
    buffer = np.empty((n_before + len(rows) + n_behind, *rows.shape[1:]), rows.dtype)
    buffer.view(np.uint8)[...] = 0xFF  # in every type, not a number
    buffer[n_before : n_before + len(rows)] = rows
    return buffer


def assert_same(case: Case, kernels: Kernels, reference: Kernels) -> None:
    """Compare with the reference kernels."""
    expected = case.run(reference)
    out = case.run(kernels)
    assert out.shape == expected.shape
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [1, 2, 5, 130])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (9, 1)])
def test_every_type_and_grouping(
    kernels: Kernels, reference: Kernels, kv_type: str, n_tokens: int, heads: tuple[int, int]
) -> None:
    for n_rows in (n_tokens, n_tokens + 200):
        assert_same(Case(kv_type=kv_type, n_tokens=n_tokens, n_rows=n_rows, heads=heads), kernels, reference)


@pytest.mark.parametrize("n_rows", [1, 2, 63, 64, 65, 128, 255, 256, 257, 1000])
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_any_number_of_rows(kernels: Kernels, reference: Kernels, n_rows: int, n_tokens: int) -> None:
    assert_same(Case(n_tokens=min(n_tokens, n_rows), n_rows=n_rows), kernels, reference)


@pytest.mark.parametrize("n_swa", [1, 2, 63, 64, 65, 256, 300, 1000])
@pytest.mark.parametrize("n_tokens", [1, 7, 150])
def test_windows(kernels: Kernels, reference: Kernels, n_tokens: int, n_swa: int) -> None:
    assert_same(Case(n_tokens=n_tokens, n_rows=400, n_swa=n_swa), kernels, reference)
    # rows that were given up because no query sees them
    assert_same(Case(n_tokens=n_tokens, n_rows=n_tokens + n_swa - 1, start=70_000, n_swa=n_swa), kernels, reference)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [1, 2, 130])
@pytest.mark.parametrize("n_swa", [None, 100])
def test_rows_that_are_not_seen_do_not_matter(kernels: Kernels, kv_type: str, n_tokens: int, n_swa: int | None) -> None:
    case = Case(kv_type=kv_type, n_tokens=n_tokens, n_rows=300, start=5000, n_swa=n_swa)
    expected = case.run(kernels)
    for n_before, n_behind in ((0, 1), (1, 0), (37, 500), (999, 64)):
        case.move(n_before, n_behind)
        assert np.array_equal(case.run(kernels), expected)


@pytest.mark.parametrize(
    "head_dims", [(8, 8), (40, 24), (256, 256), (576, 512), (12, 12), (20, 8), (8, 20)], ids=lambda d: f"{d[0]}x{d[1]}"
)
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_any_head_size(kernels: Kernels, reference: Kernels, kv_type: str, head_dims: tuple[int, int]) -> None:
    for n_tokens in (1, 20):
        assert_same(Case(kv_type=kv_type, n_tokens=n_tokens, n_rows=90, head_dims=head_dims), kernels, reference)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("sinks", [None, [-3.0, 0.0, 9.0, 100.0]])
def test_bounded_scores_and_sinks(
    kernels: Kernels, reference: Kernels, kv_type: str, softcap: float | None, sinks: list[float] | None
) -> None:
    more = {"softcap": softcap, "sinks": None if sinks is None else np.array(sinks, np.float32), "n_swa": 50}
    for n_tokens in (1, 70):
        assert_same(Case(kv_type=kv_type, n_tokens=n_tokens, n_rows=300, **more), kernels, reference)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 100.0, 1e4])
def test_scores_of_any_magnitude(kernels: Kernels, reference: Kernels, scale: float) -> None:
    case = Case(kv_type="f32", n_tokens=9, n_rows=300, scale=scale)
    # of two scores that are large, the difference is all that counts, and as exact as the scores are
    np.testing.assert_allclose(case.run(kernels), case.run(reference), rtol=1e-2, atol=1e-3 * max(1, scale / 100))


def test_a_row_that_is_not_a_number_reaches_all_who_see_it(kernels: Kernels) -> None:
    case = Case(kv_type="f32", n_tokens=80, n_rows=80)
    for rows in (case.k, case.v):
        before = rows[40].copy()
        rows[40] = np.nan
        assert np.isnan(case.run(kernels)[40:]).all()
        rows[40] = before


@pytest.mark.parametrize("name", COMPILED)
def test_the_number_of_threads_does_not_change_a_bit(name: str, kernel_cache: Path) -> None:
    cases = [Case(kv_type=t, n_tokens=n, n_rows=900, heads=(6, 2)) for t in KV_TYPES for n in (1, 4, 200)]
    results = []
    for n_threads in (1, 2, 3, 5):
        kernels = make_kernels(name, n_threads=n_threads, cache_folder=kernel_cache)
        results.append([case.run(kernels).tobytes() for case in cases])
        kernels.close()
    assert all(outs == results[0] for outs in results[1:])


def test_no_tokens(kernels: Kernels) -> None:
    assert Case(n_tokens=0, n_rows=5).run(kernels).shape == (0, 4 * 64)
