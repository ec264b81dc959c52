"""Machine code out of modules, kept in the user's cache folder.

A folder is named by what decides on the code: the sources of the kernels, the compiler's version, and the
instruction set. What is found there is loaded; what isn't is compiled and put there.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import xxhash
from llvmlite import binding as llvm

from engine.kernels import kv_types, layout
from engine.kernels.compiled.ir import Module
from engine.kernels.compiled.isa import InstructionSet
from engine.kernels.compiled.kept_code import KeptCode
from engine.kernels.compiled.operation import environment

# instructions stay in the order in which they were written, as far as may be: see compile_module
_OPTIONS = ["--misched-prera-direction=topdown"]
if platform.machine() in ("x86_64", "AMD64"):
    _OPTIONS.append("--x86-machine-combiner=false")  # unknown where LLVM was built without this target
Compiling = Callable[[str], None]  # told the name of each module that must be compiled


@cache
def digest_of_sources() -> str:
    """Return a digest of all that the kernels are written in."""
    digest = xxhash.xxh3_64()
    for source in sorted((*Path(__file__).parent.glob("*.py"), Path(kv_types.__file__), Path(layout.__file__))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


class Library:
    """Functions compiled for one instruction set."""

    def __init__(self, isa: InstructionSet, *, cache_folder: Path | None, compiling: Compiling) -> None:
        _initialize()
        self.isa = isa
        self._compiling = compiling
        self._kept = KeptCode(cache_folder and cache_folder / self.identity)
        self._machine = target_machine(isa)
        self._jit = llvm.create_lljit_compiler(target_machine(isa))
        self._linked: list[Any] = []  # code lives as long as what links it

    @property
    def note(self) -> str | None:
        """Say why compiled code is not kept, if something is wrong with the folder for it."""
        return self._kept.note

    @property
    def identity(self) -> str:
        """Name what decides on the results: the instruction set, the compiler, the sources."""
        return f"{self.isa.name}-llvmlite-{llvmlite.__version__}-{environment()}-{digest_of_sources()}"

    def link(self, name: str, write: Callable[[Module, InstructionSet], None], exports: list[str]) -> list[int]:
        """Return the addresses of a module's exported functions; `write` is called if it must be compiled."""
        code = self._kept.read(name)
        if code is None:
            self._compiling(name)
            module = Module(name)
            write(module, self.isa)
            code = compile_module(module, self._machine)
            self._kept.keep(name, code)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        linked = builder.link(self._jit, name)
        self._linked.append(linked)
        return [linked[symbol] for symbol in exports]


def target_machine(isa: InstructionSet, triple: str | None = None) -> llvm.TargetMachine:
    """Return the compiler's back end for an instruction set, by default on this kind of system."""
    _initialize()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.target_features, opt=3, reloc="pic", codemodel="default" if triple else "jitdefault"
    )


def compile_module(module: Module, machine: llvm.TargetMachine) -> bytes:
    """Return the object code of a module."""
    parsed = llvm.parse_assembly(str(module.ir))
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_function_pass_manager()
    # The kernels are written as they shall run. What is left to do is to put variables into registers and to do once
    # what was written twice; LLVM's whole program would also reorder sums until there are more than registers.
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_aggressive_dce_pass()
    passes.add_simplify_cfg_pass()
    for written in parsed.functions:
        if not written.is_declaration:
            passes.run(written, builder)
    code: bytes = machine.emit_object(parsed)
    return code


def function(address: int, result: Any, *parameters: Any, keeps_gil: bool = False) -> Callable[..., Any]:
    """Return a Python function that calls an address.

    It gives up the global interpreter lock meanwhile, which costs more than a short call is worth: not so if it
    `keeps_gil`.
    """
    prototype = ctypes.PYFUNCTYPE if keeps_gil else ctypes.CFUNCTYPE
    return prototype(result, *parameters)(address)


@cache
def _initialize() -> None:
    for option in _OPTIONS:
        llvm.set_option("dormouse", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
