"""Instruction sets: what the kernels need of a processor beyond plain vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from engine.kernels.compiled.ir import Function, Type, Value, f32, i8, i16, i32, vec


class InstructionSet(ABC):
    """One way to multiply small integers, and the vectors that go with it."""

    name: ClassVar[str]
    features: ClassVar[tuple[str, ...]]  # in LLVM's names; all must be there
    target_features: ClassVar[str]  # what LLVM may use, exactly: the rest of the machine's is left alone
    cpu: ClassVar[str]  # whose timings LLVM schedules for
    lanes: ClassVar[int]  # float32 values in a register
    n_registers: ClassVar[int]
    # how signed weights of 8 bits are multiplied: as they are, 128 added to them, or widened to 16 bits (where they
    # meet activations of 16 bits); weights of less bits are bytes without a sign, and meet activations of 8 bits
    signed_weights: ClassVar[Literal["signed", "offset", "wide"]]

    @classmethod
    def runs_on(cls, host: Mapping[str, bool]) -> bool:
        """Whether a processor with these features has all that is needed."""
        return all(host.get(feature, False) for feature in cls.features)

    @property
    def f32s(self) -> Type:
        """The type of a register of float32 values."""
        return vec(f32, self.lanes)

    @property
    def i32s(self) -> Type:
        """The type of a register of int32 values."""
        return vec(i32, self.lanes)

    @property
    def bytes(self) -> Type:
        """The type of a register of bytes."""
        return vec(i8, 4 * self.lanes)

    @abstractmethod
    def dot_accumulator(self, f: Function, *, wide: bool) -> Value:
        """Return the zero that `dot` adds to."""

    @abstractmethod
    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        """Add products to an accumulator: in each 32-bit lane four of bytes, or (`wide`) two of int16 values."""

    @abstractmethod
    def most_dots(self, value_bits: int) -> int:
        """Return how many products of bytes, the weights of so many bits, an accumulator may hold."""

    @abstractmethod
    def dot_sum(self, f: Function, total: Value, *, wide: bool) -> Value:
        """Return an accumulator's sums as one int32 in each lane."""

    @abstractmethod
    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        """Return the int8 values of a table of 16 at the indices (bytes below 16)."""

    @abstractmethod
    def pause(self, f: Function) -> None:
        """Tell the processor that this is a loop that waits."""


class _X86(InstructionSet):
    def pause(self, f: Function) -> None:
        f.intrinsic_void("llvm.x86.sse2.pause")


class AVX2(_X86):
    """x86-64 of 2013 on: bytes are multiplied in pairs, into sums of 16 bits.

    `vpmaddubsw` saturates at 16 bits: 8 sums of 2 * 15 * 127 do not reach that, nor 4 of 2 * 31 * 127; one of
    2 * 255 * 127 would.
    """

    name = "avx2"
    features = ("avx2", "fma", "f16c")
    target_features = "+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt"
    cpu = "haswell"
    lanes = 8
    n_registers = 16
    signed_weights = "wide"

    def dot_accumulator(self, f: Function, *, wide: bool) -> Value:
        return f.constant(vec(i32, 8) if wide else vec(i16, 16), 0)

    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        if wide:
            return total + f.intrinsic("llvm.x86.avx2.pmadd.wd", vec(i32, 8), weights, x)
        return total + f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", vec(i16, 16), weights, x)

    def most_dots(self, value_bits: int) -> int:
        return 32767 // (2 * 127 * ((1 << value_bits) - 1))

    def dot_sum(self, f: Function, total: Value, *, wide: bool) -> Value:
        if wide:
            return total
        return f.intrinsic("llvm.x86.avx2.pmadd.wd", vec(i32, 8), total, f.constant(vec(i16, 16), 1))

    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        return f.intrinsic("llvm.x86.avx2.pshuf.b", vec(i8, 32), f.lanes(i8, table * 2), indices)


class FourAtOnce(InstructionSet):
    """Four products of bytes and their sum in one instruction, without saturation."""

    def dot_accumulator(self, f: Function, *, wide: bool) -> Value:
        return f.constant(self.i32s, 0)

    def most_dots(self, value_bits: int) -> int:
        return 1 << 16

    def dot_sum(self, f: Function, total: Value, *, wide: bool) -> Value:
        return total


class _VNNI(FourAtOnce, _X86):
    """Weights without a sign times activations with one."""

    signed_weights = "offset"
    _instruction: ClassVar[str]

    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        return f.intrinsic(self._instruction, self.i32s, total, weights, x)


class AVX512VNNI(_VNNI):
    """Ice Lake, Zen 4 and later."""

    name = "avx512vnni"
    features = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx2", "fma", "f16c")
    target_features = (
        "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,-prefer-256-bit"
    )
    cpu = "icelake-server"
    lanes = 16
    n_registers = 32
    _instruction = "llvm.x86.avx512.vpdpbusd.512"

    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        return f.intrinsic("llvm.x86.avx512.pshuf.b.512", vec(i8, 64), f.lanes(i8, table * 4), indices)


class AVXVNNI(_VNNI):
    """Alder Lake and later: the same on registers of 256 bits."""

    name = "avxvnni"
    features = ("avxvnni", "avx2", "fma", "f16c")
    target_features = "+avxvnni,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt"
    cpu = "alderlake"
    lanes = 8
    n_registers = 16
    _instruction = "llvm.x86.avx512.vpdpbusd.256"

    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        return f.intrinsic("llvm.x86.avx2.pshuf.b", vec(i8, 32), f.lanes(i8, table * 2), indices)


class NEON(FourAtOnce):
    """Arm since Armv8.2, where the dot products of bytes, both with signs, are there."""

    name = "neon"
    features = ("neon", "dotprod")
    target_features = "+neon,+dotprod,+lse"
    cpu = "generic"
    lanes = 4
    n_registers = 32
    signed_weights = "signed"

    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        return f.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", self.i32s, total, weights, x)

    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        return f.intrinsic("llvm.aarch64.neon.tbl1.v16i8", self.bytes, f.lanes(i8, table), indices)

    def pause(self, f: Function) -> None:
        # an instruction barrier: `yield`, which is meant for this, takes no time on most processors
        f.intrinsic_void("llvm.aarch64.isb", f.constant(i32, 15))


INSTRUCTION_SETS: dict[str, InstructionSet] = {isa.name: isa for isa in (AVX512VNNI(), AVXVNNI(), AVX2(), NEON())}
"""By name, the fastest first."""
