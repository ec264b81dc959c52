"""What the processor at hand can do."""

from __future__ import annotations

import ctypes
import platform
import sys

from llvmlite import binding as llvm

_AT_HWCAP, _HWCAP_ASIMDDP = 16, 1 << 20  # Linux's name for Arm's dot products


def host_features() -> dict[str, bool]:
    """Return what the processor, and the system on it, can do, in LLVM's names."""
    features = dict(llvm.get_host_cpu_features())
    if sys.platform == "linux" and platform.machine() == "aarch64":
        # LLVM does not ask Linux for it
        get = ctypes.CDLL(None).getauxval
        get.argtypes, get.restype = [ctypes.c_ulong], ctypes.c_ulong
        features["dotprod"] = bool(get(_AT_HWCAP) & _HWCAP_ASIMDDP)
    return features
