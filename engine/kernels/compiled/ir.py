"""A small language for kernels: Python that runs once, to write down LLVM's instructions.

A `Value` knows its type, and Python's operators on it append instructions to the function being written. Loops of
Python unroll; loops of the machine are `with f.loop(n) as i`. Nothing here knows what the kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

Type: TypeAlias = Any  # of llvmlite's types, which tell no type checker what they are

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()
ptr = ir.PointerType()


def vec(element: Type, lanes: int) -> Type:
    """Return the type of vectors of so many lanes."""
    return ir.VectorType(element, lanes)


def is_float(type_: Type) -> bool:
    """Whether a type, or the elements of a vector type, are floating-point."""
    element = type_.element if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, ir.HalfType | ir.FloatType)


Operand = "Value | float"


class Value:
    """A value in the function being written: integers are signed, pointers count in bytes."""

    def __init__(self, function: Function, value: ir.Value) -> None:
        self.f = function
        self.ir = value

    @property
    def type(self) -> Type:
        """LLVM's type."""
        return self.ir.type

    def _lift(self, other: Value | float) -> Value:
        return other if isinstance(other, Value) else self.f.constant(self.type, other)

    def _binary(self, other: Value | float, integer: str, floating: str | None = None) -> Value:
        b = self.f.builder
        name = floating if is_float(self.type) else integer
        assert name is not None
        return Value(self.f, getattr(b, name)(self.ir, self._lift(other).ir))

    def __add__(self, other: Value | float) -> Value:
        if self.type == ptr:
            index = other if isinstance(other, Value) else self.f.constant(i64, other)
            return Value(self.f, self.f.builder.gep(self.ir, [index.ir], source_etype=i8))
        return self._binary(other, "add", "fadd")

    def __radd__(self, other: float) -> Value:
        return self._lift(other) + self

    def __sub__(self, other: Value | float) -> Value:
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other: float) -> Value:
        return self._lift(other) - self

    def __mul__(self, other: Value | float) -> Value:
        return self._binary(other, "mul", "fmul")

    def __rmul__(self, other: float) -> Value:
        return self._lift(other) * self

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary(other, "sdiv", "fdiv")

    def __rtruediv__(self, other: float) -> Value:
        return self._lift(other) / self

    def __floordiv__(self, other: Value | float) -> Value:
        """Return the quotient of integers that are not negative."""
        return self._binary(other, "udiv")

    def __mod__(self, other: Value | float) -> Value:
        """Return the remainder of integers that are not negative."""
        return self._binary(other, "urem")

    def __and__(self, other: Value | float) -> Value:
        return self._binary(other, "and_")

    def __or__(self, other: Value | float) -> Value:
        return self._binary(other, "or_")

    def __xor__(self, other: Value | float) -> Value:
        return self._binary(other, "xor")

    def __lshift__(self, other: Value | float) -> Value:
        return self._binary(other, "shl")

    def __rshift__(self, other: Value | float) -> Value:
        """Shift right, filling with the sign."""
        return self._binary(other, "ashr")

    def unsigned_shift(self, other: Value | float) -> Value:
        """Shift right, filling with zeros."""
        return self._binary(other, "lshr")

    def _compare(self, relation: str, other: Value | float) -> Value:
        b = self.f.builder
        compare = b.fcmp_ordered if is_float(self.type) else b.icmp_signed
        return Value(self.f, compare(relation, self.ir, self._lift(other).ir))

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Value | float) -> Value:
        """Compare for equality."""
        return self._compare("==", other)

    def is_set(self) -> Value:
        """Whether a pointer is not null."""
        null = ir.Constant(ptr, None)
        return Value(self.f, self.f.builder.icmp_unsigned("!=", self.ir, null))

    def bits(self, type_: Type) -> Value:
        """Read the same bits as another type."""
        return Value(self.f, self.f.builder.bitcast(self.ir, type_))

    def to(self, type_: Type) -> Value:
        """Convert to another type, integers as signed."""
        b, wide = self.f.builder, _element_bits(type_) > _element_bits(self.type)
        match is_float(self.type), is_float(type_):
            case False, False:
                convert = b.sext if wide else b.trunc
            case False, True:
                convert = b.sitofp
            case True, False:
                convert = b.fptosi
            case _:
                convert = b.fpext if wide else b.fptrunc
        return self if type_ == self.type else Value(self.f, convert(self.ir, type_))

    def unsigned_to(self, type_: Type) -> Value:
        """Convert an integer that has no sign to another type."""
        b = self.f.builder
        convert = b.uitofp if is_float(type_) else b.zext
        return Value(self.f, convert(self.ir, type_))

    def shuffle(self, lanes: Sequence[int], other: Value | None = None) -> Value:
        """Return the vector of the lanes with these numbers, those of `other` counted on."""
        b, undefined = self.f.builder, ir.Constant(self.type, ir.Undefined)
        mask = ir.Constant(vec(i32, len(lanes)), list(lanes))
        return Value(self.f, b.shuffle_vector(self.ir, other.ir if other else undefined, mask))

    def lane(self, index: int) -> Value:
        """Return one lane of a vector."""
        return Value(self.f, self.f.builder.extract_element(self.ir, ir.Constant(i32, index)))

    def splat(self, lanes: int) -> Value:
        """Return a vector with this value in every lane."""
        b, type_ = self.f.builder, vec(self.type, lanes)
        first = b.insert_element(ir.Constant(type_, ir.Undefined), self.ir, ir.Constant(i32, 0))
        return Value(self.f, first).shuffle([0] * lanes)


def _element_bits(type_: Type) -> int:
    element = type_.element if isinstance(type_, ir.VectorType) else type_
    return {ir.HalfType: 16, ir.FloatType: 32}.get(type(element)) or element.width


class _Pointer:
    """A plain pointer, where llvmlite has one that knows what it points to, or wants to know what it calls."""

    def __init__(self, pointer: ir.Value, signature: ir.FunctionType | None = None) -> None:
        self.type = ptr
        self.function_type = signature
        self.get_reference = pointer.get_reference


class Variable:
    """A value that loops change; LLVM keeps it in a register where it can."""

    def __init__(self, function: Function, initial: Value) -> None:
        self._f = function
        self._type = initial.type
        with function.builder.goto_entry_block():
            self._address = function.builder.alloca(initial.type)
        self.set(initial)

    def get(self) -> Value:
        """Return the present value."""
        return Value(self._f, self._f.builder.load(self._address, typ=self._type))

    def set(self, value: Value) -> None:
        """Change it."""
        self._f.builder.store(value.ir, self._address)


class Function:
    """A function being written, `args` by name."""

    def __init__(self, module: Module, function: ir.Function, names: Sequence[str]) -> None:
        self.module = module
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.args = {name: Value(self, arg) for name, arg in zip(names, function.args, strict=True)}

    def __getitem__(self, name: str) -> Value:
        return self.args[name]

    def constant(self, type_: Type, value: float) -> Value:
        """Return a constant; of a vector type, with it in every lane."""
        if isinstance(type_, ir.VectorType):
            return Value(self, ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count))
        return Value(self, ir.Constant(type_, value))

    def lanes(self, element: Type, values: Sequence[float]) -> Value:
        """Return a constant vector."""
        return Value(self, ir.Constant(vec(element, len(values)), [ir.Constant(element, v) for v in values]))

    def load(self, type_: Type, address: Value, *, align: int = 1) -> Value:
        """Load from memory."""
        return Value(self, self.builder.load(address.ir, typ=type_, align=align))

    def store(self, value: Value, address: Value, *, align: int = 1) -> None:
        """Store to memory."""
        self.builder.store(value.ir, address.ir, align=align)

    def variable(self, initial: Value) -> Variable:
        """Return a variable."""
        return Variable(self, initial)

    def buffer(self, nbytes: int) -> Value:
        """Return memory on the stack."""
        with self.builder.goto_entry_block():
            memory = self.builder.alloca(ir.ArrayType(i8, nbytes))
            memory.align = 64
        return Value(self, _Pointer(memory))

    @contextmanager
    def loop(self, stop: Value | int, start: Value | int = 0, step: int = 1) -> Iterator[Value]:
        """Count an i64 from `start` to below `stop`."""
        b = self.builder
        first, last = (v if isinstance(v, Value) else self.constant(i64, v) for v in (start, stop))
        head, body, end = (self.function.append_basic_block(name) for name in ("head", "body", "end"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(i64)
        index.add_incoming(first.ir, before)
        b.cbranch(b.icmp_signed("<", index, last.ir), body, end)
        b.position_at_end(body)
        yield Value(self, index)
        index.add_incoming(b.add(index, ir.Constant(i64, step)), b.block)
        b.branch(head)
        b.position_at_end(end)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Value], None]]:
        """Repeat until the function that it yields is called with a condition that holds."""
        b = self.builder
        body, end = (self.function.append_basic_block(name) for name in ("body", "end"))
        b.branch(body)
        b.position_at_end(body)

        def leave_when(condition: Value) -> None:
            stay = self.function.append_basic_block("stay")
            b.cbranch(condition.ir, end, stay)
            b.position_at_end(stay)

        yield leave_when
        b.branch(body)
        b.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block only where a condition holds."""
        with self.builder.if_then(condition.ir):
            yield

    @contextmanager
    def either(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        """Run the first or the second of two blocks."""
        with self.builder.if_else(condition.ir) as (then, otherwise):
            yield then, otherwise

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return a where the condition holds, else b."""
        return Value(self, self.builder.select(condition.ir, a.ir, b.ir))

    def min(self, a: Value, b: Value | float) -> Value:
        """Return the smaller integer."""
        other = a._lift(b)
        return self.select(a < other, a, other)

    def intrinsic(self, name: str, result: Type, *args: Value) -> Value:
        """Call one of LLVM's intrinsics by its full name."""
        signature = ir.FunctionType(result, [arg.type for arg in args])
        return Value(self, self.builder.call(self.module.declare(name, signature), [arg.ir for arg in args]))

    def intrinsic_void(self, name: str, *args: Value) -> None:
        """Call an intrinsic that returns nothing."""
        signature = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
        self.builder.call(self.module.declare(name, signature), [arg.ir for arg in args])

    def elementwise(self, name: str, *args: Value) -> Value:
        """Call an intrinsic that works lane by lane, such as `sqrt`, `fma`, `maxnum`."""
        type_ = args[0].type
        lanes, element = (f"v{type_.count}", type_.element) if isinstance(type_, ir.VectorType) else ("", type_)
        letter = "f" if is_float(type_) else "i"
        return self.intrinsic(f"llvm.{name}.{lanes}{letter}{_element_bits(element)}", type_, *args)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        return self.elementwise("fma", a, b, c)

    def call(self, callee: ir.Function, *args: Value) -> Value:
        """Call a function of the module."""
        return Value(self, self.builder.call(callee, [arg.ir for arg in args]))

    def call_address(self, address: Value, signature: ir.FunctionType, *args: Value) -> Value:
        """Call the function at an address."""
        callee = _Pointer(address.ir, signature)
        return Value(self, self.builder.call(callee, [arg.ir for arg in args]))

    def prefetch(self, address: Value, *, writes: bool = False) -> None:
        """Have a cache line loaded, which may lie where no memory is."""
        hints = (self.constant(i32, hint) for hint in (int(writes), 3, 1))  # 3: keep it near, 1: it is data
        self.intrinsic_void("llvm.prefetch.p0", address, *hints)

    def load_atomic(self, address: Value) -> Value:
        """Load an i64 that other threads change."""
        return Value(self, self.builder.load_atomic(address.ir, "acquire", 8, typ=i64))

    def store_atomic(self, value: Value, address: Value) -> None:
        """Store an i64 that other threads read."""
        self.builder.atomic_rmw("xchg", address.ir, value.ir, "acq_rel")

    def add_atomic(self, address: Value, value: Value) -> None:
        """Add to an i64 that other threads add to as well."""
        self.builder.atomic_rmw("add", address.ir, value.ir, "acq_rel")

    def exchange(self, address: Value, expected: Value, new: Value) -> Value:
        """Replace an i64 if it is still as expected; return whether it was."""
        pair = self.builder.cmpxchg(address.ir, expected.ir, new.ir, "acq_rel", "acquire")
        return Value(self, self.builder.extract_value(pair, 1))

    def finish(self, result: Value | None = None) -> ir.Function:
        """Return from the function, which is complete then."""
        if result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(result.ir)
        return self.function


class Module:
    """A module being written."""

    def __init__(self, name: str) -> None:
        self.ir = ir.Module(name)

    def function(
        self, name: str, parameters: Mapping[str, Type], *, result: Type | None = None, exported: bool = False
    ) -> Function:
        """Begin a function."""
        signature = ir.FunctionType(result or ir.VoidType(), list(parameters.values()))
        function = ir.Function(self.ir, signature, name)
        if not exported:
            function.linkage = "internal"
        return Function(self, function, list(parameters))

    def declare(self, name: str, signature: ir.FunctionType) -> ir.Function:
        """Return the declaration of a function that is elsewhere."""
        known = self.ir.globals.get(name)
        return known if known is not None else ir.Function(self.ir, signature, name)
