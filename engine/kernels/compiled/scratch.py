"""Memory that operations write intermediate results to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CACHE_LINE = 64


class Scratch:
    """A piece of memory that grows as needed."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> NDArray[np.uint8]:
        """Return at least so many bytes; what was in them is lost when more is asked for."""
        if len(self._memory) < nbytes:
            memory = np.empty(2 * nbytes + _CACHE_LINE, np.uint8)
            self._memory = memory[-memory.ctypes.data % _CACHE_LINE :]
        return self._memory
