"""The check that an array is what an operation's parameter declares: compiled code takes it at its word."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.kernels.compiled.operation import Array


class ArrayCheck:
    """The check of one parameter."""

    def __init__(self, operation: str, parameter: str, declared: Array) -> None:
        self._what = f"{operation}: {parameter}"
        self._parameter = parameter
        self._declared = declared
        self._dtype = np.dtype(declared.dtype)
        self._sizes = [_parse(size) for size in declared.shape.split()]

    def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Raise TypeError for another dtype, ValueError for another shape or gaps, given all arguments by name."""
        declared = self._declared
        if declared.given is not None and not arguments[declared.given]:
            return
        array = arguments[self._parameter]
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{self._what} is no array but {type(array).__name__}")
        if array.dtype != self._dtype:
            raise TypeError(f"{self._what} is an array of {array.dtype}, not of {self._dtype}")
        if self._sizes and not self._fits(array.shape, arguments):
            raise ValueError(f"{self._what} has the shape {array.shape}, not ({declared.shape})")
        if not array.size:
            return
        if not (array.flags.c_contiguous if declared.step is None else is_contiguous_inside(array)):
            raise ValueError(f"{self._what} does not lie in one piece")
        if declared.step is not None and array.strides[0] != arguments[declared.step]:
            raise ValueError(f"{self._what} has a step of {array.strides[0]}, not {declared.step} bytes")

    def _fits(self, shape: tuple[int, ...], arguments: Mapping[str, Any]) -> bool:
        if len(shape) != len(self._sizes):
            return False
        return all(
            factors is None or size == prod(arguments[f] if isinstance(f, str) else f for f in factors)
            for size, factors in zip(shape, self._sizes, strict=True)
        )


def _parse(size: str) -> list[int | str] | None:
    """Return numbers and parameters to multiply, or None for any size."""
    return None if size == "." else [int(factor) if factor.isdecimal() else factor for factor in size.split("*")]


def by_token(x: NDArray[Any]) -> NDArray[Any]:
    """Return x such that each item of its first axis lies in one piece; copied if need be."""
    return x if x.flags.c_contiguous or is_contiguous_inside(x) else np.ascontiguousarray(x)


def is_contiguous_inside(array: NDArray[Any]) -> bool:
    """Whether each item of the first axis lies in one piece."""
    expected = array.itemsize
    for size, stride in zip(array.shape[:0:-1], array.strides[:0:-1], strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
