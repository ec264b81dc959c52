#!/usr/bin/env python3
"""Set up a checkout of Dormouse and use it.

    python3 packaging/dev.py run [slot files or a model]
    python3 packaging/dev.py test [arguments of pytest]
    python3 packaging/dev.py bench [--runs N] [--quick]
    python3 packaging/dev.py install-desktop
    python3 packaging/dev.py uninstall-desktop

`run` fetches the starter model and starts the window; `test` checks style and types and runs the tests; `bench`
measures several models beside llama.cpp and prints a table. They need only Python 3.11 or newer, and first bring about
what is missing: system packages (as root; otherwise they name the command to type), the virtual environment `.venv`,
and the pinned packages in it. `install-desktop` makes this checkout the program that a double click on a slot file
starts, in the user's own folders; `uninstall-desktop` takes that back.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import desktop

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
LIBRARIES = {
    "libgomp.so.1": "libgomp1",
    # of Qt itself
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libxkbcommon.so.0": "libxkbcommon0",
    # of its window on X11
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}
"""Shared libraries that the packages load from the system, and the Debian packages that hold them."""
TEST_PROGRAMS = {
    # asked about the desktop's files
    "desktop-file-validate": "desktop-file-utils",
    "update-mime-database": "shared-mime-info",
    # for the kernels of Arm processors
    "aarch64-linux-gnu-ld": "binutils-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
"""Programs that the tests run, and their Debian packages."""
TEST_WORKERS = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Tests of one file share a process, as they share what is expensive; `tests/conftest.py` has the long files first."""


class Stop(Exception):
    """The set-up can't go on; the text says what to do about it."""


def run(*command: str | Path) -> None:
    """Run a command, show what it prints, and stop if it fails."""
    subprocess.run(command, cwd=ROOT, check=True)


def prepare(*command: str | Path) -> None:
    """Run a command that belongs to the set-up; what it prints goes to stderr."""
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


def say(text: str) -> None:
    """Tell what comes next, on stderr: stdout belongs to the program that is started."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def require_python() -> None:
    """Stop unless this Python is new enough for Dormouse."""
    if sys.version_info < OLDEST_PYTHON:
        raise Stop(f"Dormouse needs Python 3.11 or newer; this is {sys.version.split()[0]}.")


def missing_packages(programs: Mapping[str, str]) -> list[str]:
    """Return the Debian packages without which the set-up, the window or one of `programs` would fail."""
    missing = []
    # Debian keeps ensurepip apart from python3, and `python3 -m venv` fails without it.
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if sys.platform == "linux":
        for library, package in LIBRARIES.items():
            try:
                ctypes.CDLL(library)
            except OSError:
                missing.append(package)
        missing += [package for program, package in programs.items() if shutil.which(program) is None]
    return missing


def install_packages(packages: list[str]) -> None:
    """Install Debian packages as root; otherwise stop and name the command that does."""
    if not packages:
        return
    update = ["apt-get", "update"]
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        raise Stop(f"please install what Debian calls {' and '.join(packages)}, then try again.")
    if os.geteuid() != 0:
        command = f"sudo {shlex.join(update)} && sudo {shlex.join(install)}"
        raise Stop(f"system packages are missing; please type this, then try again:\n\n    {command}\n")
    say(f"installing the system packages {', '.join(packages)}")
    prepare(*update)
    prepare("env", "DEBIAN_FRONTEND=noninteractive", *install)


class Environment:
    """The virtual environment of a checkout, with the project installed in place."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.programs = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.programs / "python"
        self.window = self.programs / "dormouse"
        self.cli = self.programs / "dormouse-cli"
        self.marker = self.folder / "installed"
        """Holds `fingerprint()` as of the last installation that went through."""

    def fingerprint(self) -> str:
        """Digest all that the installed packages depend on."""
        parts = ((self.root / "pyproject.toml").read_bytes(), sys.version.encode(), bytes(self.folder))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def is_sound(self) -> bool:
        """Tell whether the environment's Python starts, has pip, and is as new as this one."""
        code = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        try:
            probe = subprocess.run([self.python, "-c", code], stderr=subprocess.DEVNULL, check=False)
        except OSError:
            return False
        return probe.returncode == 0

    def is_current(self) -> bool:
        """Tell whether the packages were installed from `pyproject.toml` as it is now."""
        return self.marker.exists() and self.marker.read_text() == self.fingerprint()

    def prepare(self) -> None:
        """Make the environment, or only what is missing of it."""
        if not self.is_sound():
            say(f"making {self.folder}")
            prepare(sys.executable, "-m", "venv", "--clear", self.folder)
        if not self.is_current():
            say("installing the pinned packages")
            prepare(self.python, "-m", "pip", "install", "--editable", f"{self.root}[test]")
            self.marker.write_text(self.fingerprint())


def run_command(environment: Environment, arguments: Sequence[str]) -> None:
    """Fetch the starter model, which the window loads unless it is told of another, and open the window."""
    run(environment.cli, "fetch-starter")
    window = str(environment.window)
    os.execv(window, [window, *arguments])


def test_command(environment: Environment, arguments: Sequence[str]) -> None:
    """Check style and types, then run the tests, which fetch their models themselves.

    All of them run in two processes, but for those that measure time: they come last, alone.
    """
    run(environment.python, "-m", "ruff", "check")
    run(environment.python, "-m", "ruff", "format", "--check")
    run(environment.python, "-m", "mypy")
    pytest = (environment.python, "-m", "pytest")
    if arguments:
        run(*pytest, *arguments)
    else:
        run(*pytest, *TEST_WORKERS, "-m", "not clock")
        run(*pytest, "-m", "clock")


def bench_command(environment: Environment, arguments: Sequence[str]) -> None:
    """Measure several models beside llama.cpp."""
    run(environment.python, "-m", "bench.table", *arguments)


def install_desktop_command(environment: Environment, _arguments: Sequence[str]) -> None:
    """Make this checkout the program that opens slot files."""
    if sys.platform in ("win32", "darwin"):
        raise Stop("this system has no desktop entries as freedesktop.org defines them.")
    folder = desktop.data_folder()
    desktop.install(environment.window, folder)
    say(f"slot files now open in {environment.window} (by entries in {folder})")


def uninstall_desktop_command(_environment: Environment, _arguments: Sequence[str]) -> None:
    """Take back what `install-desktop` did."""
    desktop.uninstall(desktop.data_folder())


COMMANDS: dict[str, Callable[[Environment, Sequence[str]], None]] = {
    "run": run_command,
    "test": test_command,
    "bench": bench_command,
    "install-desktop": install_desktop_command,
    "uninstall-desktop": uninstall_desktop_command,
}


def main(argv: Sequence[str]) -> int:
    """Prepare everything, carry out the command, and return its exit status."""
    name, *arguments = argv or [""]
    if name not in COMMANDS:
        wants_help = name in ("-h", "--help")
        print(__doc__, file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else 2
    try:
        require_python()
        environment = Environment(ROOT)
        if name != "uninstall-desktop":
            install_packages(missing_packages(TEST_PROGRAMS if name == "test" else {}))
            environment.prepare()
        COMMANDS[name](environment, arguments)
    except Stop as stop:
        say(str(stop))
        return 1
    except subprocess.CalledProcessError as error:
        say(f"stopped, as this failed: {shlex.join(map(str, error.cmd))}")
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
