"""Every set of kernels that can be tested here: those of this machine, and doubles of those of other machines.

A double takes the decisions of the set that it stands in for: whatever depends on the size of a register, on their
number, or on how weights are multiplied, shows here as it would there. `pytest --instruction-set "avx512vnni double"`
has one stand in for the fastest kernels of this machine.
"""

import os
from pathlib import Path

from engine import kernels
from engine.kernels import Kernels, choice
from engine.kernels.choice import PORTABLE, runnable
from engine.kernels.compiled.ir import Function, Value, i8, vec
from engine.kernels.compiled.isa import AVX512VNNI, AVXVNNI, INSTRUCTION_SETS, NEON, FourAtOnce, InstructionSet
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.reference import ReferenceKernels

VARIABLE = "DORMOUSE_TEST_INSTRUCTION_SET"
"""Names the double that stands in, also for the processes that a test starts."""
_HOST = INSTRUCTION_SETS[runnable()[0]]


class _Double(FourAtOnce):
    """Decides, counts and multiplies as another instruction set does, but in plain arithmetic that runs here."""

    features = ()
    target_features = _HOST.target_features
    cpu = _HOST.cpu

    def dot(self, f: Function, total: Value, weights: Value, x: Value, *, wide: bool) -> Value:
        weights, x = weights.bits(self.i32s), x.bits(self.i32s)
        for shift in (0, 8, 16, 24):
            weight = (
                (weights << (24 - shift)) >> 24
                if self.signed_weights == "signed"
                else weights.unsigned_shift(shift) & 255
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


def _double_of(isa: type[FourAtOnce]) -> InstructionSet:
    decisions = {name: getattr(isa, name) for name in ("lanes", "n_registers", "signed_weights")}
    return type(f"{isa.__name__}Double", (_Double,), {"name": f"{isa.name} double", **decisions})()


_ALL_DOUBLES = {isa.name: isa for isa in map(_double_of, (AVX512VNNI, AVXVNNI, NEON))}
DOUBLES = tuple(name for name in _ALL_DOUBLES if "avxvnni" not in name)
"""Those that every test of kernels is repeated with; AVX-VNNI's decisions are each those of one of them or of AVX2."""
_COMPILED: dict[str, InstructionSet] = {
    **{name: INSTRUCTION_SETS[name] for name in runnable() if name != PORTABLE and name not in _ALL_DOUBLES},
    **{name: _ALL_DOUBLES[name] for name in DOUBLES},
}
COMPILED = tuple(_COMPILED)
ALL = (PORTABLE, *COMPILED)
FASTEST_AND_DOUBLES = (COMPILED[0], *(name for name in DOUBLES if name != COMPILED[0]))
"""Whatever depends on the number of lanes is to be tested with all of these."""


def make_kernels(name: str, *, n_threads: int, cache_folder: Path) -> Kernels:
    """Return the kernels with one of the names of `ALL`."""
    if name == PORTABLE:
        return ReferenceKernels(n_threads=n_threads)
    return CompiledKernels(_COMPILED[name], n_threads=n_threads, cache_folder=cache_folder)


def stand_in() -> None:
    """Have the double that the environment names be the fastest kernels, if it names one."""
    name = os.environ.get(VARIABLE)
    if name and name not in INSTRUCTION_SETS:
        slower = dict(INSTRUCTION_SETS)
        INSTRUCTION_SETS.clear()
        INSTRUCTION_SETS.update({name: _ALL_DOUBLES[name]} | slower)
        kernels.KERNELS = choice.KERNELS = (name, *choice.KERNELS)
