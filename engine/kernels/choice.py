"""Which kernels run here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from engine.errors import DormouseError
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.self_check import KernelFault, check_kernels

ENVIRONMENT_VARIABLE = "DORMOUSE_KERNELS"
CACHE_VARIABLE = "DORMOUSE_KERNEL_CACHE"
PORTABLE = "numpy"
KERNELS = ("avx512vnni", "avxvnni", "avx2", "neon", PORTABLE)
"""All kernels by name, the fastest first."""


def load_kernels(
    name: str | None = None,
    *,
    n_threads: int | None = None,
    cache_folder: Path | None = None,
    compiling: Callable[[str], None] = lambda name: None,
) -> Kernels:
    """Return the kernels called `name`, else those that DORMOUSE_KERNELS names, else the fastest that work here.

    `n_threads` defaults to what DORMOUSE_THREADS says, else to all cores. Compiled code is kept in the folder that
    DORMOUSE_KERNEL_CACHE names, else in `cache_folder`, if there is one; `compiling` is told what must be compiled.
    Raises DormouseError for kernels that were named but do not exist or do not work here.
    """
    if folder := os.environ.get(CACHE_VARIABLE):
        cache_folder = Path(folder)

    def make(name: str) -> Kernels:
        return _make(name, n_threads=n_threads, cache_folder=cache_folder, compiling=compiling)

    wanted = name or os.environ.get(ENVIRONMENT_VARIABLE)
    if wanted is None:
        return _fastest(make)
    if wanted not in KERNELS:
        raise DormouseError(f"There are no kernels called “{wanted}”; there are: {', '.join(KERNELS)}")
    if wanted not in runnable():
        raise DormouseError(f"The kernels “{wanted}” can't run on this machine; there run: {', '.join(runnable())}")
    try:
        return make(wanted)
    except KernelFault as fault:
        raise DormouseError(f"The kernels “{wanted}” do not work on this machine: {fault}") from fault


def runnable() -> tuple[str, ...]:
    """Return the names of the kernels that run on this machine, the fastest first; the portable ones always do."""
    try:
        return (*_compiled(), PORTABLE)
    except ImportError:
        return (PORTABLE,)


def _fastest(make: Callable[[str], Kernels]) -> Kernels:
    """Return the fastest kernels that work, with a note about those that should but don't."""
    notes = []
    try:
        names = _compiled()
        if not names:
            notes.append("there are no faster ones for this processor")
    except ImportError as error:
        names = ()
        notes.append(f"the compiler of the faster ones can't be loaded ({error})")
    for name in (*names, PORTABLE):
        try:
            kernels = make(name)
        except KernelFault as fault:
            notes.append(f"the kernels “{name}” do not work: {fault}")
        else:
            kernels.note = "; ".join([*notes, *filter(None, [kernels.note])]) or None
            break
    return kernels


def _compiled() -> tuple[str, ...]:
    """Return the names of the compiled kernels for this processor; raises ImportError without the compiler."""
    from engine.kernels.compiled.host import host_features  # noqa: PLC0415 - the compiler may not be there
    from engine.kernels.compiled.isa import INSTRUCTION_SETS  # noqa: PLC0415

    host = host_features()
    return tuple(name for name, isa in INSTRUCTION_SETS.items() if isa.runs_on(host))


def _make(name: str, *, n_threads: int | None, cache_folder: Path | None, compiling: Callable[[str], None]) -> Kernels:
    """Return the kernels called `name`; raises KernelFault where they do not work."""
    if name == PORTABLE:
        return ReferenceKernels(n_threads=n_threads)
    from engine.kernels.compiled.isa import INSTRUCTION_SETS  # noqa: PLC0415 - the compiler may not be there
    from engine.kernels.compiled.kernels import CompiledKernels  # noqa: PLC0415

    try:
        kernels = CompiledKernels(
            INSTRUCTION_SETS[name], n_threads=n_threads, cache_folder=cache_folder, compiling=compiling
        )
    except (OSError, RuntimeError) as error:  # what the compiler raises, and the system that loads its code
        raise KernelFault(f"they can't be compiled ({error})") from error
    try:
        check_kernels(kernels)
    except (OSError, RuntimeError, KernelFault) as fault:
        kernels.close()
        raise KernelFault(str(fault)) from fault
    return kernels
