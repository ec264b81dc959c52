"""The arithmetic of the engine: one interface, several implementations, chosen once at the start."""

from __future__ import annotations

import os

from engine.errors import DormouseError
from engine.kernels.interface import F32, Kernels, RopeTable
from engine.kernels.reference import ReferenceKernels

__all__ = ["F32", "Kernels", "RopeTable", "load_kernels"]

KERNELS: dict[str, type[Kernels]] = {"numpy": ReferenceKernels}
ENVIRONMENT_VARIABLE = "DORMOUSE_KERNELS"


def load_kernels(name: str | None = None, *, n_threads: int | None = None) -> Kernels:
    """Return the kernels called `name`, else those that DORMOUSE_KERNELS names, else the fastest that run here.

    `n_threads` defaults to all cores. Raises DormouseError for a name that does not exist.
    """
    wanted = name or os.environ.get(ENVIRONMENT_VARIABLE) or "numpy"
    if wanted not in KERNELS:
        raise DormouseError(f"there are no kernels called “{wanted}”; there are: {', '.join(KERNELS)}")
    return KERNELS[wanted](n_threads=n_threads)
