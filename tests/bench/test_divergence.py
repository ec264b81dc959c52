"""The divergence that the benchmark reports, on distributions whose divergence is known."""

import numpy as np
import pytest

from bench.divergence import kl_divergence


def test_equal_distributions_do_not_diverge() -> None:
    log_p = np.log([0.5, 0.3])
    assert kl_divergence(log_p, log_p) == pytest.approx(0, abs=1e-12)


def test_the_rest_is_one_event() -> None:
    log_p, log_q = np.log([0.5, 0.25]), np.log([0.25, 0.25])
    expected = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    assert kl_divergence(log_p, log_q) == pytest.approx(expected)


def test_no_rest_at_all() -> None:
    log_p, log_q = np.log([0.5, 0.5]), np.log([0.75, 0.25])
    assert kl_divergence(log_p, log_q) == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25))
