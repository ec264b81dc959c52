"""Operations: exported functions whose work is cut into tasks for the team."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from llvmlite import ir as llvm_ir
from numpy.typing import DTypeLike

from engine.kernels.compiled.ir import Function, Module, Type, Value, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.team import write_run


class Use(Enum):
    """What an operation does with an array; it decides whether it can be recorded: see `calls`."""

    READ = "read"
    WRITTEN = "written"
    LASTING = "lasting"  # memory that stays where it is: of K/V rows, or scratch memory
    STATE = "state"  # of a recurrent layer, read
    NEXT_STATE = "next_state"  # written; as many of these as of the others


@dataclass(frozen=True)
class Array:
    """A parameter that is given as a NumPy array: looking up its data here costs nothing.

    NumPy's C interface promises that the pointer to an array's data follows Python's object header. The rest of what
    an operation relies on is declared here, and checked when Python calls it: see `array_check`.
    """

    use: Use
    shape: str = ""  # sizes, apart by spaces: parameters, products of them (n*m), numbers, `.` for any; "" for any
    dtype: DTypeLike = np.float32
    step: str | None = None  # parameter: bytes from one item of the first axis to the next, if they may lie apart
    given: str | None = None  # parameter: 0 where nothing is read


Parameters = Mapping[str, Type | Array]

_HEADER = object.__basicsize__
RECORDED = "_recorded"  # what the second form of an operation is called

Task = Callable[[Function], None]  # writes a task; it finds the arguments, `task` and `thread` in the function
Count = Callable[[Function], Value]  # writes the number of tasks
Complete = Callable[[Function], Mapping[str, Value]]  # writes arguments that follow from the parameters


def environment() -> str:
    """Name what compiled operations rely on besides the processor."""
    return f"{sys.implementation.cache_tag}-{_HEADER}"


class Operations:
    """The operations of one module, while they are written."""

    def __init__(self, module: Module, isa: InstructionSet) -> None:
        self.module = module
        self.isa = isa
        self._run = write_run(module, isa)

    def add(
        self,
        name: str,
        parameters: Parameters,
        phases: list[tuple[Count, Task]],
        complete: Complete = lambda f: {},
    ) -> None:
        """Write an exported function `name` of (team, parameters), which runs one phase after the other.

        The tasks' arguments are the parameters and what `complete` adds to them.
        """
        types = {p: ptr if isinstance(kind, Array) else kind for p, kind in parameters.items()}
        f = self.module.function(name, {"team": ptr, **types}, exported=True)
        for parameter, kind in parameters.items():
            if isinstance(kind, Array):
                f.args[parameter] = f.load(ptr, f[parameter] + _HEADER, align=8)
        f.args.update(complete(f))
        arguments = {name: value for name, value in f.args.items() if name != "team"}
        memory = f.buffer(8 * len(arguments))
        for i, value in enumerate(arguments.values()):
            f.store(value, memory + 8 * i, align=8)
        argument_types = {name: value.type for name, value in arguments.items()}
        for i, (count, task) in enumerate(phases):
            written = self._task(f"{name}_{i}", argument_types, task)
            f.call(self._run, f["team"], Value(f, written), memory, count(f))
        self._add_recorded(f.finish(), types)

    def _add_recorded(self, operation: llvm_ir.Function, types: Mapping[str, Type]) -> None:
        """Write the second form of an operation, which finds its arguments in memory."""
        f = self.module.function(f"{operation.name}{RECORDED}", {"team": ptr, "arguments": ptr}, exported=True)
        arguments = (f.load(type_, f["arguments"] + 8 * i, align=8) for i, type_ in enumerate(types.values()))
        f.call(operation, f["team"], *arguments)
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
