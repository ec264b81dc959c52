"""K/V rows that are hard to quantize."""

import numpy as np
from numpy.typing import NDArray

N_HEAD_KV, HEAD_DIM = 2, 96


def rows_of_every_sort() -> NDArray[np.float32]:
    """Return rows of all magnitudes, with blocks of zeros, of equal values, of ties and of two opposite extremes."""
    x = np.random.default_rng(0).standard_normal((500, N_HEAD_KV, HEAD_DIM)).astype(np.float32)
    x *= np.exp2(np.linspace(-30, 12, 500, dtype=np.float32))[:, None, None]
    x[0] = 0
    x[1] = -0.0
    x[2] = 1.5
    x[3] = np.arange(HEAD_DIM) % 32 - 15.5
    x[4, :, ::32] = 127  # with a scale of 1, halves are ties
    x[4, :, 1:32] = np.arange(31) - 14.5
    x[5, 0, :2] = [8, -8]
    x[6, 0, :2] = [-8, 8]
    x[7] *= np.float32(1e-38)
    return x
