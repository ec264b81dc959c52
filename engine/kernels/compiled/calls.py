"""Compiled operations, as Python calls them, and as they are recorded to be called again without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_int64, c_void_p, py_object
from operator import itemgetter
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.kernels.compiled.array_check import ArrayCheck
from engine.kernels.compiled.ir import Module, Type, f32, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import Library, function
from engine.kernels.compiled.operation import RECORDED, Array, Parameters, Use

_MOST_KNOWN = 1024  # layouts of an operation's arguments


class Operation:
    """An operation, as Python calls it: with the address of the team, then its arguments.

    `recorded` is the address of its second form, which takes the team and the address of its arguments, 8 bytes each.
    """

    def __init__(self, name: str, address: int, recorded: int, parameters: Parameters) -> None:
        kinds: dict[Type, Any] = {ptr: c_void_p, f32: c_float}
        types = list(parameters.values())
        ctypes = (py_object if isinstance(kind, Array) else kinds.get(kind, c_int64) for kind in types)
        self.call = function(address, None, c_void_p, *ctypes)
        self.recorded = recorded
        self._name = name
        self._parameters = parameters.keys()
        self._checks = [ArrayCheck(name, p, kind) for p, kind in parameters.items() if isinstance(kind, Array)]
        self._in_order = itemgetter(*parameters)
        self._arrays = itemgetter(*(p for p, kind in parameters.items() if isinstance(kind, Array)))
        self._integers = itemgetter(*(p for p, kind in parameters.items() if kind is i64))
        self._right: set[tuple[Any, ...]] = set()  # the layouts that were checked: they come again and again
        # which of the arguments are what
        uses = {i: kind.use for i, kind in enumerate(types) if isinstance(kind, Array)}
        self.arrays = list(uses)
        self.floats = [i for i, kind in enumerate(types) if kind == f32]
        self.read = [i for i, use in uses.items() if use is Use.READ]
        self.written = [i for i, use in uses.items() if use in (Use.WRITTEN, Use.NEXT_STATE)]
        self.states = [i for i, use in uses.items() if use is Use.STATE]
        self.next_states = [i for i, use in uses.items() if use is Use.NEXT_STATE]

    def ordered(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments, given by name, in the order that `call` takes them in.

        Raises TypeError where one is missing or unknown, and what `ArrayCheck` raises.
        """
        if arguments.keys() != self._parameters:
            missing, unknown = self._parameters - arguments.keys(), arguments.keys() - self._parameters
            raise TypeError(f"{self._name} misses {sorted(missing)}, and does not know {sorted(unknown)}")
        layout: tuple[Any, ...] | None
        try:
            layout = self._integers(arguments), *[(a.dtype, a.shape, a.strides) for a in self._arrays(arguments)]
        except AttributeError:
            layout = None  # there is something that is no array
        if layout is None or layout not in self._right:
            for check in self._checks:
                check(arguments)
            if len(self._right) == _MOST_KNOWN:
                self._right.clear()
            if layout is not None:
                self._right.add(layout)
        ordered: tuple[Any, ...] = self._in_order(arguments)
        return ordered


def link_operations(
    library: Library,
    name: str,
    write: Callable[[Module, InstructionSet], None],
    signatures: Mapping[str, Parameters],
) -> dict[str, Operation]:
    """Return a module's operations by name; `write` is called if it must be compiled."""
    exports = [f"{operation}{form}" for operation in signatures for form in ("", RECORDED)]
    addresses = iter(library.link(name, write, exports))
    return {
        operation: Operation(operation, next(addresses), next(addresses), parameters)
        for operation, parameters in signatures.items()
    }


class Recorder:
    """Notes the operations that a step is made of.

    A step can be done again only if nothing but operations takes part in it. So every array that an operation reads
    must be one that an earlier operation wrote, one of the step's inputs, a recurrent layer's state, or a constant,
    which weights are: read-only. What operations wrote is made read-only as well, so that nothing else changes it.
    """

    def __init__(self, inputs: Sequence[NDArray[Any]]) -> None:
        self.complete = True  # whether the step can be done again
        self._known = {id(_owner(array)) for array in inputs}
        self._operations: list[int] = []
        self._arguments: list[int] = []
        self._starts: list[int] = []  # where in the arguments those of each operation begin
        self._states: list[tuple[int, int]] = []  # where in the arguments a state is, and the one to follow it
        self._held: list[object] = list(inputs)
        self._written: list[NDArray[Any]] = []

    def release(self) -> None:
        """Let everything else have the arrays that were written."""
        for array in self._written:
            array.flags.writeable = True

    def knows(self, array: NDArray[Any]) -> bool:
        """Whether an array holds the same in every repetition, or what belongs there."""
        owner = _owner(array)
        return id(owner) in self._known or not owner.flags.writeable

    def add(self, operation: Operation, arguments: tuple[Any, ...]) -> None:
        """Note an operation, before it is called."""
        start = len(self._arguments)
        self._operations.append(operation.recorded)
        self._starts.append(start)
        self._held.append(arguments)
        self.complete = self.complete and all(self.knows(arguments[i]) for i in operation.read)
        for i in operation.written:
            owner = _owner(arguments[i])
            self._known.add(id(owner))
            self._written.append(owner)
            owner.flags.writeable = False
        words = list(arguments)
        for i in operation.arrays:
            words[i] = id(arguments[i])
        for i in operation.floats:
            words[i] = int.from_bytes(pack("<f", arguments[i]), "little")
        self._arguments += [word or 0 for word in words]
        states = zip(operation.states, operation.next_states, strict=True)
        self._states += [(start + state, start + following) for state, following in states]

    def finish(self) -> Recording:
        """Return what was noted, which must be complete."""
        return Recording(self._operations, self._starts, self._arguments, self._states, self._held)


class Recording:
    """Operations and their arguments, in the memory where `team_replay` finds them."""

    def __init__(
        self,
        operations: Sequence[int],
        starts: Sequence[int],
        arguments: Sequence[int],
        states: Sequence[tuple[int, int]],
        held: Sequence[object],
    ) -> None:
        self._arguments = np.array(arguments, np.int64)
        address = self._arguments.ctypes.data
        self._calls = np.array([(o, address + 8 * s) for o, s in zip(operations, starts, strict=True)], np.int64)
        self._states = np.array(states, np.intp).reshape(-1, 2)
        self._held = held
        self.n_calls = len(self._calls)
        self.address = self._calls.ctypes.data

    def swap_states(self) -> None:
        """Have the next repetition begin with the states that the last one ended with, and write over those before."""
        self._arguments[self._states] = self._arguments[self._states[:, ::-1]]


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that a view is of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
