"""What happens to exceptions that nobody caught: a line in the log, and one dialog."""

from __future__ import annotations

import faulthandler
import platform
import re
import sys
import threading
import traceback
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO

from PySide6.QtCore import QObject, Qt, Signal, Slot, qVersion
from PySide6.QtWidgets import QApplication

from app.widgets.problem_dialog import ProblemDialog
from engine.errors import DormouseError
from engine.private_file import open_to_append

_LOG_NAME = "dormouse.log"
_LONGEST_LOG = 1 << 20
_LONGEST_TEXT = 20_000
_MOST_OF_A_KIND = 3
_MOST_KINDS = 1000
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def versions(kernels: str) -> str:
    """Return what a report has to say about the program and the machine, in lines."""
    return "\n".join(
        (
            f"Dormouse {version('dormouse')}, kernels: {kernels}",
            f"Python {platform.python_version()}, Qt {qVersion()}, PySide6 {version('PySide6-Essentials')}",
            f"{platform.platform()}, {QApplication.platformName() or 'no window system'}",
        )
    )


def install(log_folder: Path) -> CrashReporter:
    """Take up all exceptions that nobody catches from now on, and crashes of the interpreter, into a log file."""
    reporter = CrashReporter(log_folder)
    reporter.install()
    return reporter


class CrashReporter(QObject):
    """Writes problems into the log at once, whichever thread they come from, and shows them in the GUI thread.

    One that comes again and again is told a few times.

    One dialog is open at a time: what comes meanwhile is added to it.
    """

    _reported = Signal(str, str)

    def __init__(self, log_folder: Path) -> None:
        super().__init__()
        self.kernels = "none loaded yet"
        """The name of the kernels that compute, for reports."""
        self._log = _Log(log_folder / _LOG_NAME)
        self._dialog: ProblemDialog | None = None
        self._reporting = threading.local()
        self._counting = threading.Lock()
        self._counts: dict[int, int] = {}  # by the hash of what was reported
        # queued even within the GUI thread: an exception may come in the middle of painting
        self._reported.connect(self._show, Qt.ConnectionType.QueuedConnection)

    def install(self) -> None:
        """Set Python's hooks for exceptions that nobody caught."""
        self._hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        sys.unraisablehook = self._on_unraisable
        self._log.watch_interpreter()

    def uninstall(self) -> None:
        """Put back the hooks as they were, and close the log."""
        sys.excepthook, threading.excepthook, sys.unraisablehook = self._hooks
        self._log.close()

    def report(self, text: str, details: str) -> None:
        """Log a problem and show it: one sentence, and a traceback. May be called from any thread."""
        if getattr(self._reporting, "active", False):
            return  # reporting itself failed: the log has what came before
        if not self._is_new(text, details):
            return
        self._reporting.active = True
        try:
            text, details = text[:_LONGEST_TEXT], details[-_LONGEST_TEXT:]  # where it was is at the end
            self._log.write(f"{text}\n{versions(self.kernels)}\n{details}")
            self._reported.emit(text, details)
        finally:
            self._reporting.active = False

    def _is_new(self, text: str, details: str) -> bool:
        """Tell whether a problem is not one of those that come again and again, as in painting, to be left out."""
        kind = hash((_ADDRESS.sub("", text[:_LONGEST_TEXT]), _ADDRESS.sub("", details[-_LONGEST_TEXT:])))
        with self._counting:
            if len(self._counts) >= _MOST_KINDS:
                self._counts.clear()
            self._counts[kind] = self._counts.get(kind, 0) + 1
            return self._counts[kind] <= _MOST_OF_A_KIND

    def note(self, text: str) -> None:
        """Log a sentence without showing it."""
        self._log.write(text)

    @Slot(str, str)
    def _show(self, text: str, details: str) -> None:
        details = f"{text}\n\n{details}"
        if self._dialog is not None:
            self._dialog.add(details)
            return
        self._dialog = ProblemDialog(
            text, f"{versions(self.kernels)}\n\n{details}", str(self._log.path), QApplication.activeWindow()
        )
        self._dialog.finished.connect(self._forget_dialog)
        self._dialog.open()

    @Slot()
    def _forget_dialog(self) -> None:
        if self._dialog is not None:
            self._dialog.deleteLater()
            self._dialog = None

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            self.report(_sentence(error), _details(error, trace))
        else:  # KeyboardInterrupt: somebody wants the program to end
            self._hooks[0](kind, error, trace)

    def _on_thread_exception(self, arguments: threading.ExceptHookArgs) -> None:
        if (error := arguments.exc_value) is not None and isinstance(error, Exception):
            name = arguments.thread.name if arguments.thread else "unknown"
            self.report(_sentence(error), f"In the thread {name}:\n{_details(error, arguments.exc_traceback)}")

    def _on_unraisable(self, arguments: sys.UnraisableHookArgs) -> None:
        if (error := arguments.exc_value) is not None:
            place = f"{arguments.err_msg or 'Exception ignored in'}: {arguments.object!r}"
            self.report(_sentence(error), f"{place}\n{_details(error, arguments.exc_traceback)}")


class _Log:
    """A text file of mode 0600 that only grows, up to a size at which it begins anew and keeps its predecessor.

    Where it can't be written there is none: a program that fails should not fail again over that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._watching = False
        self._file: IO[str] | None = None
        self._open()

    def watch_interpreter(self) -> None:
        """Have Python write down where it was when the process is killed by a fault."""
        self._watching = True
        if self._file is not None:
            faulthandler.enable(self._file)

    def write(self, text: str) -> None:
        """Append an entry with the time."""
        with self._lock, suppress(OSError):
            if self._file is not None and self._file.tell() > _LONGEST_LOG:
                self._close()
                self._open()
            if self._file is not None:
                self._file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n")
                self._file.flush()

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._close()

    def _open(self) -> None:
        with suppress(OSError):
            if self.path.exists() and self.path.stat().st_size > _LONGEST_LOG:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            descriptor = open_to_append(self.path)
            self._file = open(descriptor, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
            if self._watching:
                faulthandler.enable(self._file)

    def _close(self) -> None:
        if self._file is not None:
            if self._watching:
                faulthandler.disable()
            self._file.close()
            self._file = None


def _sentence(error: BaseException) -> str:
    if isinstance(error, DormouseError):
        return str(error)
    return f"Something went wrong inside Dormouse ({type(error).__name__}: {error})."


def _details(error: BaseException, trace: TracebackType | None) -> str:
    return "".join(traceback.format_exception(type(error), error, trace))
