"""The compiled operations for Arm, each call of them a small program that an emulator runs.

The program maps memory at a fixed address, reads it from its standard input, calls the operation with the arguments
that it finds at the beginning, and writes the memory to its standard output. So what an operation gets is copied
there, and its result copied back.
"""

import ctypes
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import ir as llvm_ir
from numpy.typing import NDArray

from engine.kernels.compiled import matmul
from engine.kernels.compiled.calls import Operation
from engine.kernels.compiled.ir import Function, Module, Type, Value, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import compile_module, target_machine
from engine.kernels.compiled.operation import Array, Operations, Parameters, Use
from engine.kernels.layout import GROUP

TRIPLE = "aarch64-linux-gnu"
_BASE, _NBYTES = 1 << 32, 1 << 22  # of the program's memory
_READ, _WRITE, _EXIT, _MMAP = 63, 64, 93, 222  # Linux's system calls
_PROTECTION, _FLAGS = 1 | 2, 2 | 16 | 32  # read and write; private, at this address, of no file
_SYSTEM_CALL = """
    .globl system_call
system_call:
    mov x8, x0
    mov x0, x1
    mov x1, x2
    mov x2, x3
    mov x3, x4
    mov x4, x5
    mov x5, x6
    svc #0
    ret
"""
_HEADER = object.__basicsize__


class EmulatedLibrary:
    """A library whose functions run elsewhere; made and asked as `library.Library` is."""

    folder: Path  # for the programs
    note: str | None = None

    def __init__(self, isa: InstructionSet, **_: object) -> None:
        self.isa = isa
        self._machine = target_machine(isa, TRIPLE)
        self._callbacks: list[Any] = []

    def link(self, name: str, write: Callable[[Module, InstructionSet], None], exports: list[str]) -> list[int]:
        """Return the addresses of functions that run a program; 0 for what isn't an operation that Python calls."""
        module = Module(name)
        with _written_operations() as operations:
            write(module, self.isa)
        if not operations:
            return [0] * len(exports)
        _write_start(module, operations)
        program = self.folder / name
        code, system_call = program.with_suffix(".o"), program.with_suffix(".call.o")
        code.write_bytes(compile_module(module, self._machine))
        subprocess.run(["aarch64-linux-gnu-as", "-o", system_call], input=_SYSTEM_CALL, text=True, check=True)
        subprocess.run(["aarch64-linux-gnu-ld", "-o", program, code, system_call], check=True)
        addresses = {
            name: self._run_by(program, index, parameters)
            for index, (name, parameters) in enumerate(operations.items())
        }
        return [addresses.get(name, 0) for name in exports]

    def _run_by(self, program: Path, index: int, parameters: Parameters) -> int:
        def call(_team: int, *arguments: Any) -> None:
            memory = _Memory()
            given = dict(zip(parameters, arguments, strict=True))
            values = [memory.copy(name, kind, given) for name, kind in parameters.items()]
            memory.arguments([index, memory.team(), *values])
            done = subprocess.run(["qemu-aarch64", program], input=memory.image(), capture_output=True, check=True)
            for name, kind in parameters.items():
                if isinstance(kind, Array) and kind.use not in (Use.READ, Use.STATE):
                    memory.fetch(done.stdout, given[name])

        callback = type(Operation("", 0, 0, parameters).call)(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        return address


@contextmanager
def _written_operations() -> Iterator[dict[str, Parameters]]:
    """Gather the parameters of the operations that are written meanwhile."""
    written: dict[str, Parameters] = {}
    add = Operations.add

    def note(self: Operations, name: str, parameters: Parameters, *more: Any, **others: Any) -> None:
        written[name] = parameters
        add(self, name, parameters, *more, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operations, "add", note)
        yield written


class _Memory:
    """The program's memory, while it is put together and afterwards."""

    def __init__(self) -> None:
        self._bytes = np.zeros(_NBYTES, np.uint8)
        self._used = 1024  # the arguments come first
        self._places: dict[int, int] = {}

    def image(self) -> bytes:
        """Return all of it."""
        return self._bytes.tobytes()

    def arguments(self, values: list[int | float]) -> None:
        """Put the operation's arguments where the program looks for them."""
        for i, value in enumerate(values):
            number = np.array([value], np.float32 if isinstance(value, float) else np.int64)
            self._bytes[8 * i : 8 * i + number.nbytes] = number.view(np.uint8)

    def team(self) -> int:
        """Return the address of a team of one thread."""
        return self._put(np.ones(64, np.int64))

    def copy(self, name: str, kind: Type | Array, given: Mapping[str, Any]) -> int | float:
        """Return what stands for an argument there."""
        value = given[name]
        if isinstance(kind, Array):
            data = self._put(_as_it_lies(value))
            self._places[id(value)] = data - _BASE
            return self._put(np.array([0] * (_HEADER // 8) + [data], np.int64))
        if kind is not ptr or value is None:
            return value or 0
        assert name == "part"
        part = dict(zip(matmul.PART, _bytes_at(value, 8 * len(matmul.PART)).view(np.int64).tolist(), strict=True))
        n_groups = -(-part["n_out"] // GROUP)
        part["weight"] = self._put(_bytes_at(part["weight"], n_groups * part["group_bytes"]))
        return self._put(np.array(list(part.values()), np.int64))

    def fetch(self, image: bytes, array: NDArray[Any]) -> None:
        """Copy an array's values from what the program left."""
        array[...] = np.frombuffer(image, array.dtype, array.size, self._places[id(array)]).reshape(array.shape)

    def _put(self, values: NDArray[Any]) -> int:
        start = self._used
        self._used += -(-values.nbytes // 64) * 64
        self._bytes[start : start + values.nbytes] = values.view(np.uint8)
        return _BASE + start


def _as_it_lies(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, and those between its rows."""
    if not values.size:
        return np.empty(0, np.uint8)
    last = sum(stride * (n - 1) for stride, n in zip(values.strides, values.shape, strict=True))
    return _bytes_at(values.ctypes.data, last + values.itemsize)


def _bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def _system_call(f: Function, *values: Value) -> Value:
    signature = llvm_ir.FunctionType(i64, [i64] * 7)
    filled = (*values, *[f.constant(i64, 0)] * (7 - len(values)))
    return f.call(f.module.declare("system_call", signature), *filled)


def _write_start(module: Module, operations: Mapping[str, Parameters]) -> None:
    f = module.function("_start", {}, exported=True)

    def numbers(*values: int) -> list[Value]:
        return [f.constant(i64, value) for value in values]

    base, size, zero = numbers(_BASE, _NBYTES, 0)

    def move_all(call: int, file: int) -> None:
        done = f.variable(zero)
        with f.forever() as leave_when:
            moved = _system_call(f, *numbers(call, file), base + done.get(), size - done.get())
            done.set(done.get() + moved)
            leave_when((moved <= 0) | (done.get() >= size))

    _system_call(f, *numbers(_MMAP, _BASE, _NBYTES, _PROTECTION, _FLAGS, -1, 0))
    move_all(_READ, 0)
    memory = Value(f, f.builder.inttoptr(base.ir, ptr))
    for index, (operation, parameters) in enumerate(operations.items()):
        with f.when(f.load(i64, memory).equals(index)):
            types = [ptr, *(ptr if isinstance(kind, Array) else kind for kind in parameters.values())]
            values = [f.load(type_, memory + 8 * (1 + i)) for i, type_ in enumerate(types)]
            f.call(module.ir.globals[operation], *values)
    move_all(_WRITE, 1)
    _system_call(f, *numbers(_EXIT, 0))
    f.finish()
