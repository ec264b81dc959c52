"""Operations: exported functions whose work is cut into tasks for the team."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from ctypes import c_float, c_int64, c_void_p
from typing import Any

from llvmlite import ir as llvm_ir

from engine.kernels.compiled.ir import Function, Module, Type, Value, f32, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.team import write_run

array = llvm_ir.LiteralStructType([])
"""The type of a parameter that is given as a NumPy array, by its `id`: looking up its data here costs nothing.

NumPy's C interface promises that the pointer to an array's data follows Python's object header.
"""

_HEADER = object.__basicsize__

Task = Callable[[Function], None]  # writes a task; it finds the arguments, `task` and `thread` in the function
Count = Callable[[Function], Value]  # writes the number of tasks
Complete = Callable[[Function], Mapping[str, Value]]  # writes arguments that follow from the parameters


def environment() -> str:
    """Name what compiled operations rely on besides the processor."""
    return f"{sys.implementation.cache_tag}-{_HEADER}"


def python_types(parameters: Mapping[str, Type]) -> list[Any]:
    """Return the types with which Python calls an operation: the team's address, then the parameters."""
    kinds = {ptr: c_void_p, array: c_void_p, f32: c_float}
    return [c_void_p, *(kinds.get(type_, c_int64) for type_ in parameters.values())]


class Operations:
    """The operations of one module."""

    def __init__(self, module: Module, isa: InstructionSet) -> None:
        self.module = module
        self.isa = isa
        self._run = write_run(module, isa)

    def add(
        self,
        name: str,
        parameters: Mapping[str, Type],
        phases: list[tuple[Count, Task]],
        complete: Complete = lambda f: {},
    ) -> None:
        """Write an exported function `name` of (team, parameters), which runs one phase after the other.

        The tasks' arguments are the parameters and what `complete` adds to them.
        """
        f = self.module.function(
            name, {"team": ptr, **{p: ptr if t is array else t for p, t in parameters.items()}}, exported=True
        )
        for parameter, type_ in parameters.items():
            if type_ is array:
                f.args[parameter] = f.load(ptr, f[parameter] + _HEADER, align=8)
        f.args.update(complete(f))
        arguments = {name: value for name, value in f.args.items() if name != "team"}
        memory = f.buffer(8 * len(arguments))
        for i, value in enumerate(arguments.values()):
            f.store(value, memory + 8 * i, align=8)
        types = {name: value.type for name, value in arguments.items()}
        for i, (count, task) in enumerate(phases):
            function = self._task(f"{name}_{i}", types, task)
            f.call(self._run, f["team"], Value(f, function), memory, count(f))
        f.finish()

    def _task(self, name: str, arguments: Mapping[str, Type], body: Task) -> llvm_ir.Function:
        f = self.module.function(name, {"arguments": ptr, "task": i64, "thread": i64})
        for i, (argument, type_) in enumerate(arguments.items()):
            f.args[argument] = f.load(type_, f["arguments"] + 8 * i, align=8)
        body(f)
        return f.finish()


def divided(f: Function, n: Value, size: int | Value) -> Value:
    """Return how many pieces of a size make up n."""
    return (n + (size - 1)) // size
