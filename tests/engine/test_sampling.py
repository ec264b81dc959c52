"""Sampling: what is cut off, how often what is left is drawn, and that draws depend on nothing but their counter."""

import numpy as np
import pytest

from engine.errors import DormouseError
from engine.sampling import Sampler, SamplingParameters, _top_k

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))


def draws(n: int = 4000, **parameters: float) -> np.ndarray:
    sampler = Sampler(SamplingParameters(**{"seed": 1, "top_k": 0, "top_p": 1.0, "temperature": 1.0} | parameters))
    return np.bincount([sampler.sample(LOGITS, position) for position in range(n)], minlength=5) / n


def test_temperature_0_takes_the_best_and_of_equals_the_first() -> None:
    sampler = Sampler(SamplingParameters(temperature=0))
    assert sampler.sample(LOGITS, 0) == 1
    assert sampler.sample(np.array([1, 3, 3], np.float32), 7) == 1


def test_draws_follow_the_distribution() -> None:
    np.testing.assert_allclose(draws(), np.exp(LOGITS), atol=0.03)


def test_temperature_flattens_and_sharpens() -> None:
    sharp = np.exp(LOGITS / 0.5)
    np.testing.assert_allclose(draws(temperature=0.5), sharp / sharp.sum(), atol=0.03)


def test_top_k_leaves_the_k_best() -> None:
    np.testing.assert_allclose(draws(top_k=2), [0, 4 / 7, 0, 3 / 7, 0], atol=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, {1}), (0.5, {1, 3}), (0.75, {1, 3, 4}), (0.99, {0, 1, 2, 3, 4})])
def test_top_p_leaves_the_fewest_that_reach_p(top_p: float, kept: set[int]) -> None:
    assert set(np.flatnonzero(draws(top_p=top_p))) == kept


def test_top_p_looks_at_the_distribution_before_the_temperature() -> None:
    assert set(np.flatnonzero(draws(top_p=0.5, temperature=5))) == {1, 3}


def test_a_draw_depends_on_seed_version_and_position_alone() -> None:
    parameters = SamplingParameters(seed=42, temperature=2)
    one, other = Sampler(parameters), Sampler(parameters)
    expected = [one.sample(LOGITS, position) for position in range(50)]
    assert [other.sample(LOGITS, position) for position in reversed(range(50))] == expected[::-1]
    assert [Sampler(parameters, version=1).sample(LOGITS, p) for p in range(50)] != expected
    assert [Sampler(SamplingParameters(seed=43, temperature=2)).sample(LOGITS, p) for p in range(50)] != expected


def test_without_a_seed_every_reply_has_its_own() -> None:
    parameters = SamplingParameters(temperature=2)
    replies = [[Sampler(parameters).sample(LOGITS, p) for p in range(50)] for _ in range(2)]
    assert replies[0] != replies[1]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}, {"seed": -1}],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DormouseError):
        SamplingParameters(**wrong)


@pytest.mark.parametrize("n_vocab", [1, 5, 130, 1000, 49152])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_the_best_are_found_in_large_vocabularies_as_by_sorting(n_vocab: int, step: float) -> None:
    logits = np.random.default_rng(0).standard_normal(n_vocab).astype(np.float32)
    if step:  # many that are equal: the first ids count
        logits = np.round(logits / np.float32(step)) * np.float32(step)
    expected = np.lexsort((np.arange(n_vocab), -logits))
    for k in (1, 7, 40, 0):
        ids, values = _top_k(logits, k)
        assert np.array_equal(ids, expected[: min(k or n_vocab, n_vocab)])
        assert np.array_equal(values, logits[ids])
