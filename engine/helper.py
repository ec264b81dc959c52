"""Helper processes: Python programs of our own that run beside this one, so that they can be ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_CODE = "import importlib, sys; module, *sys.path = sys.argv[1:]; importlib.import_module(module).main()"
_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without which some systems start no program


def helper_command(module: str) -> list[str]:
    """Return the command that runs `main` of a module of the engine, where this process finds modules too.

    They are named to it, so that neither the environment nor the present folder has it import something else, and so
    that it does not look for them, which takes a third of the time that it needs to begin. A packaged program, whose
    executable is not Python, needs another command: here.
    """
    own = str(Path(__file__).parents[1])
    others = (folder for folder in sys.path if os.path.isabs(folder) and folder != own)
    return [sys.executable, "-I", "-S", "-c", _CODE, module, own, *others]


def start_helper(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a helper that has pipes as its input and output, and nothing else of this process.

    It is in a process group of its own, so that an interrupt from the keyboard is not for it. It must end when its
    input does, which happens however this process ends.

    Raises:
        OSError: it can't be started.
    """
    options: dict[str, Any] = {"process_group": 0}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd=os.sep,
        env={name: os.environ[name] for name in _KEPT if name in os.environ},
        **options,
    )
