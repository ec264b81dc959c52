"""The check of what the operations of all kernels are given, before any of them sees it.

An operation's signature in `interface` says what each argument is, and `takes` of which shape. Without that, NumPy
computes with what happens to broadcast, and compiled code reads bytes that mean something else. What is known only from
the values of arguments, numbers of rows and spans of them, is checked in each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine.kernels.kv_types import BLOCK_SIZE, KV_TYPES

Method = TypeVar("Method", bound=Callable[..., Any])
Shape = tuple[int, ...]

_F32 = np.dtype(np.float32)
_MOST_KNOWN = 1024
_DTYPES = {"F32": (_F32,), "NDArray[np.int32]": (np.dtype(np.int32),), "KVRows": (*KV_TYPES.values(),)}
_OPERATIONS: dict[str, _Operation] = {}  # by the name of the method


class Rule(NamedTuple):
    """What sizes must fulfill beside being equal where they have one name."""

    says: str
    holds: Callable[[Mapping[str, int]], bool]


def divides(part: str, whole: str) -> Rule:
    """Demand that one size is a multiple of another one."""
    return Rule(f"{part} divides {whole}", lambda sizes: sizes[part] > 0 and sizes[whole] % sizes[part] == 0)


def twice_within(part: str, whole: str) -> Rule:
    """Demand that one size is at least twice another one."""
    return Rule(f"2 {part} <= {whole}", lambda sizes: 2 * sizes[part] <= sizes[whole])


def takes(*rules: Rule, **shapes: str) -> Callable[[Method], Method]:
    """Declare the shapes of an operation's arguments: the names of their axes, apart by spaces.

    Axes of one name are of one size in all arguments; `name-1` is of one less. `...` stands for any axes before, and
    an axis with a `?` may be missing. The axes of K/V rows count values, those of a RopeTable are of both its arrays.

    What else is demanded follows from the types: integers are numbers of rows of the operation's Matrix, and a RowSpan
    lies within its K/V rows and has one for each item of its first argument.
    """

    def declare(method: Method) -> Method:
        _OPERATIONS[method.__name__] = _Operation(method, shapes, rules)
        return method

    return declare


def check_arguments(kernels: type) -> None:
    """Have the operations that a class of kernels defines check what they are given.

    They raise TypeError for an argument of another type than declared, ValueError for one of another shape, and for
    rows that don't exist.
    """
    for name, method in list(vars(kernels).items()):
        if (operation := _OPERATIONS.get(name)) is not None:
            setattr(kernels, name, _checked(method, operation))


def _checked(method: Callable[..., Any], operation: _Operation) -> Callable[..., Any]:
    @wraps(method)
    def call(kernels: object, *args: Any, **kwargs: Any) -> Any:
        operation.check(args, kwargs)
        return method(kernels, *args, **kwargs)

    return call


@dataclass(frozen=True)
class _Axes:
    """What a shape must be: axes with what their size is off that of their name."""

    declared: str
    axes: tuple[tuple[str, int], ...]
    has_more: bool  # axes before these
    may_lack_first: bool

    @classmethod
    def parse(cls, declared: str) -> _Axes:
        words = declared.split()
        has_more, may_lack_first = words[0] == "...", words[0].endswith("?")
        names = [word.rstrip("?") for word in words[has_more:]]
        axes = tuple((name.removesuffix("-1"), -1 if name.endswith("-1") else 0) for name in names)
        return cls(declared, axes, has_more, may_lack_first)

    def match(self, shape: Shape, sizes: dict[str, int]) -> bool:
        """Tell whether a shape fits the sizes that are known by name; add to them."""
        axes = self.axes
        if self.has_more:
            shape = shape[-len(axes) :]
        elif self.may_lack_first and len(shape) == len(axes) - 1:
            axes = axes[1:]
        if len(shape) != len(axes):
            return False
        return all(
            sizes.setdefault(name, size - difference) + difference == size
            for (name, difference), size in zip(axes, shape, strict=True)
        )


class _Operation:
    """What an operation takes.

    Calls with the same shapes come again and again: those that were right are known.
    """

    def __init__(self, method: Callable[..., Any], shapes: Mapping[str, str], rules: tuple[Rule, ...]) -> None:
        parameters = inspect.signature(method).parameters
        places = {name: place for place, name in enumerate(parameters, -1)}  # without `self`
        by_kind = {str(parameter.annotation): (places[name], name) for name, parameter in parameters.items()}
        self._first = next((places[name], name) for name in shapes)
        self._matrix, self._numbers = by_kind.get("Matrix"), by_kind.get("NDArray[np.int32]")
        self._rows, self._span = by_kind.get("KVRows"), by_kind.get("RowSpan")
        self._rules = rules
        self._name = method.__name__
        self._arguments = [
            (places[name], name, str(parameters[name].annotation).removesuffix(" | None"), _Axes.parse(shape))
            for name, shape in shapes.items()
        ]
        self._optional = {name for name, parameter in parameters.items() if parameter.default is None}
        self._right: set[tuple[Shape | None, ...]] = set()

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        shapes: list[Shape | None] = []
        for place, name, kind, _ in self._arguments:
            value = args[place] if place < len(args) else kwargs.get(name)  # as `_argument` does, without a call
            if kind == "F32" and type(value) is np.ndarray and value.dtype is _F32:
                shapes.append(value.shape)
            else:
                shapes += self._shapes(name, kind, value)
        key = tuple(shapes)
        if key not in self._right:
            self._match(args, kwargs)
            if len(self._right) == _MOST_KNOWN:
                self._right.clear()
            self._right.add(key)
        if self._numbers is not None:
            self._check_numbers(args, kwargs)
        if self._span is not None:
            self._check_span(args, kwargs)

    def _check_numbers(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ValueError unless all numbers are those of rows."""
        assert self._numbers is not None
        assert self._matrix is not None
        numbers = _argument(self._numbers, args, kwargs)
        n_rows, _ = _argument(self._matrix, args, kwargs).shape
        if (numbers.view(np.uint32) >= n_rows).any():  # negative ones are large ones then
            raise ValueError(f"{self._name}: {self._numbers[1]} has numbers that are not from 0 to {n_rows - 1}")

    def _check_span(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ValueError unless a span lies within the rows, and has one for each item of the first argument."""
        assert self._span is not None
        assert self._rows is not None
        first, end, _ = _argument(self._span, args, kwargs).array.tolist()
        n_new, n_rows = len(_argument(self._first, args, kwargs)), len(_argument(self._rows, args, kwargs))
        if not 0 <= first <= end - n_new <= end <= n_rows:
            raise ValueError(f"{self._name}: the span from {first} to {end} has no {n_new} of {n_rows} rows")

    def _match(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ValueError unless the shapes fit each other."""
        sizes: dict[str, int] = {}
        for place, name, kind, axes in self._arguments:
            value = _argument((place, name), args, kwargs)
            parts = [f"{name}.cos", f"{name}.sin"] if kind == "RopeTable" else [name]
            for part, shape in zip(parts, self._shapes(name, kind, value), strict=True):
                if shape is not None and not axes.match(shape, sizes):
                    known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
                    raise ValueError(f"{self._name}: {part} has the shape {shape}, not ({axes.declared}) with {known}")
        for rule in self._rules:
            if not rule.holds(sizes):
                raise ValueError(f"{self._name}: no {rule.says} with {sizes}")

    def _shapes(self, name: str, kind: str, value: Any) -> list[Shape | None]:
        """Return the shapes that an argument has, None for one that is left out.

        Raises TypeError where it is of a wrong kind.
        """
        if value is None and name in self._optional:
            return [None]
        if kind == "Matrix":
            return [value.shape]
        if kind == "RopeTable":
            return [*self._shapes(f"{name}.cos", "F32", value.cos), *self._shapes(f"{name}.sin", "F32", value.sin)]
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{self._name}: {name} is no array but {type(value).__name__}")
        if value.dtype not in _DTYPES[kind]:
            dtypes = " or ".join(str(dtype) for dtype in _DTYPES[kind])
            raise TypeError(f"{self._name}: {name} is an array of {value.dtype}, not of {dtypes}")
        if value.dtype.names is None:
            return [value.shape]
        return [(*value.shape[:-1], value.shape[-1] * BLOCK_SIZE)]  # K/V rows in blocks


def _argument(where: tuple[int, str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument, by its place or its name."""
    place, name = where
    return args[place] if place < len(args) else kwargs.get(name)
