"""How tests that are marked `clock` measure: a machine may be busy for a moment, but hardly three times."""

import time
from collections.abc import Callable


def best_of_three(work: Callable[[], object]) -> float:
    """Return the fewest seconds that some work took."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
