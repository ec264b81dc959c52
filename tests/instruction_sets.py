"""Every set of kernels that can be tested here: those of this machine, and doubles of those of other machines."""

from pathlib import Path
from typing import ClassVar

from engine.kernels import Kernels
from engine.kernels.choice import PORTABLE, runnable
from engine.kernels.compiled.ir import Function, Value, i8, vec
from engine.kernels.compiled.isa import INSTRUCTION_SETS, FourAtOnce, InstructionSet
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.reference import ReferenceKernels

_HOST = INSTRUCTION_SETS[runnable()[0]]


class _Double(FourAtOnce):
    """Counts and multiplies as another instruction set does, but in plain arithmetic that runs here."""

    target_features = _HOST.target_features
    cpu = _HOST.cpu
    _weights_have_signs: ClassVar[bool]

    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        weights, x = weights.bits(self.i32s), x.bits(self.i32s)
        for shift in (0, 8, 16, 24):
            weight = (
                (weights << (24 - shift)) >> 24 if self._weights_have_signs else weights.unsigned_shift(shift) & 255
            )
            total = total + weight * ((x << (24 - shift)) >> 24)
        return total

    def look_up(self, f: Function, table: tuple[int, ...], indices: Value) -> Value:
        found = f.constant(vec(i8, 4 * self.lanes), 0)
        for index, value in enumerate(table):
            found = f.select(indices.equals(index), f.constant(found.type, value), found)
        return found

    def pause(self, f: Function) -> None:
        _HOST.pause(f)


class VNNIDouble(_Double):
    """Like AVX-512 VNNI: weights without a sign times activations with one, registers of 64 bytes."""

    name = "avx512vnni double"
    lanes = 16
    n_registers = 32
    signed_weights = "offset"
    _weights_have_signs = False


class NEONDouble(_Double):
    """Like NEON with dot products: signs on both sides, registers of 16 bytes."""

    name = "neon double"
    lanes = 4
    n_registers = 32
    signed_weights = "signed"
    _weights_have_signs = True


_DOUBLES = {isa.name: isa for isa in (VNNIDouble(), NEONDouble())}
_COMPILED: dict[str, InstructionSet] = {
    **{name: INSTRUCTION_SETS[name] for name in runnable() if name != PORTABLE},
    **_DOUBLES,
}
COMPILED = tuple(_COMPILED)
ALL = (PORTABLE, *COMPILED)


def make_kernels(name: str, *, n_threads: int, cache_folder: Path) -> Kernels:
    """Return the kernels with one of the names of `ALL`."""
    if name == PORTABLE:
        return ReferenceKernels(n_threads=n_threads)
    return CompiledKernels(_COMPILED[name], n_threads=n_threads, cache_folder=cache_folder)
