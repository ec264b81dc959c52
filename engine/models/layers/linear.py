"""Linear layers: a weight matrix and, where the file has one, a bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import Kernels, Matrix
from engine.models.weights import Weights, constant


@dataclass(frozen=True)
class Linear:
    """x @ weight.T + bias."""

    weight: Matrix  # (n_out, n_in)
    bias: F32 | None = None  # (n_out,)

    @classmethod
    def load(cls, weights: Weights, rows: Mapping[str, int], n_in: int) -> Linear:
        """Take the rows of several layers as one, so that there is one product instead of several.

        `rows` gives the number of rows of each `name`; its tensors are `name`.weight and, where it exists, `name`.bias.
        """
        matrix = weights.matrix({f"{name}.weight": n for name, n in rows.items()}, n_in)
        biases = _biases(weights, {name: (n,) for name, n in rows.items()})
        return cls(matrix, biases)

    @classmethod
    def load_experts(cls, weights: Weights, rows: Mapping[str, int], n_in: int, n_expert: int) -> tuple[Linear, ...]:
        """Take a layer for each expert; see `load`."""
        matrices = weights.experts({f"{name}.weight": n for name, n in rows.items()}, n_in, n_expert)
        biases = _biases(weights, {name: (n_expert, n) for name, n in rows.items()})
        return tuple(cls(matrix, None if biases is None else biases[i]) for i, matrix in enumerate(matrices))

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        out = kernels.matmul(x, self.weight)
        return out if self.bias is None else kernels.add(out, self.bias)


def _biases(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> F32 | None:
    """Return the biases one after the other, zeros for those that are missing; None if all are."""
    names = [f"{name}.bias" for name in shapes]
    if not any(name in weights for name in names):
        return None
    biases = [
        weights.array(name, *shape) if name in weights else np.zeros(shape, np.float32)
        for name, shape in zip(names, shapes.values(), strict=True)
    ]
    return constant(np.concatenate(biases, axis=-1))
