"""A loop of nothing but an instruction set's products of bytes: the most that a matrix product could reach."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import numpy as np

from engine.kernels.compiled.ir import Module, i64, ptr
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.library import Library, function

_N_WEIGHTS = 4  # registers
_N_TURNS = 1 << 21
_N_INPUTS = 64  # registers that take turns, in the nearest cache: the loop's products must not be the same each time


class DotLoop:
    """The loop, compiled; `run` may be called from several threads."""

    def __init__(self, isa: InstructionSet) -> None:
        self._library = Library(isa, cache_folder=None, compiling=lambda name: None)
        (address,) = self._library.link("dot_loop", _write, ["dot_loop"])
        self._loop = function(address, None, c_void_p, c_void_p, c_int64)
        self._inputs = np.ones(_N_INPUTS * 4 * isa.lanes, np.uint8)
        self._n_out = _n_accumulators(isa) * 4 * isa.lanes
        self.n_operations = _N_TURNS * _n_accumulators(isa) * 4 * isa.lanes * 2

    def run(self) -> None:
        """Do `n_operations` products and sums."""
        out = np.empty(self._n_out, np.uint8)
        self._loop(self._inputs.ctypes.data, out.ctypes.data, _N_TURNS)


def _n_accumulators(isa: InstructionSet) -> int:
    return isa.n_registers // 2


def _write(module: Module, isa: InstructionSet) -> None:
    f = module.function("dot_loop", {"inputs": ptr, "out": ptr, "n": i64}, exported=True)
    register_bytes = 4 * isa.lanes
    weights = [f.load(isa.bytes, f["inputs"] + register_bytes * i) for i in range(_N_WEIGHTS)]
    totals = [f.variable(isa.dot_accumulator(f, wide=False)) for _ in range(_n_accumulators(isa))]
    with f.loop(f["n"]) as turn:
        for i, total in enumerate(totals):
            if i % _N_WEIGHTS == 0:
                x = f.load(isa.bytes, f["inputs"] + (turn + i) % _N_INPUTS * register_bytes)
            total.set(isa.dot(f, total.get(), weights[i % _N_WEIGHTS], x, wide=False))
    for i, total in enumerate(totals):
        f.store(total.get(), f["out"] + register_bytes * i)
    f.finish()
