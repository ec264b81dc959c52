"""Work that takes long and is not the engine's: fetching a model, copying a file."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance

from engine.errors import DormouseError

CLOSE_SECONDS = 5.0

Work = Callable[[Callable[[int, int], None], threading.Event], Any]
"""Called with a function that takes the progress (done, total), and the flag that asks to end early."""


class BackgroundWork(QObject):
    """Runs one piece of work in a thread of its own; what it tells arrives in the GUI thread."""

    progressed = Signal(object, object)  # done, total: plain integers, as bytes of a file exceed 32 bits
    succeeded = Signal(object)
    failed = Signal(str, str)
    """A sentence; and a traceback where only a programmer can mend what it says, otherwise nothing."""

    def __init__(self, work: Work, parent: QObject) -> None:
        super().__init__(parent)
        self._work = work
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="task", daemon=True)

    @property
    def was_cancelled(self) -> bool:
        """Whether the work was asked to end early."""
        return self._cancelled.is_set()

    def start(self) -> None:
        """Begin; call it once, after connecting the signals."""
        self._thread.start()

    def cancel(self) -> None:
        """Ask the work to end early; it fails then."""
        self._cancelled.set()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Cancel, and wait for the end, but no longer than this: what does not end ends with the process."""
        self.cancel()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            result = self._work(self.progressed.emit, self._cancelled)
        except DormouseError as error:
            self._tell(self.failed, str(error), "")
        except Exception as error:  # the thread's edge: whoever waits is told, and may begin again
            text = f"Something went wrong inside Dormouse ({type(error).__name__}: {error})."
            self._tell(self.failed, text, "".join(traceback.format_exception(error)))
        else:
            self._tell(self.succeeded, result)

    def _tell(self, signal: SignalInstance, *values: object) -> None:
        with suppress(RuntimeError):  # the window is gone: see `close`
            signal.emit(*values)
