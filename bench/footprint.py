"""Memory that a process takes for itself."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Self

from engine.kernels import Matrix

_INTERVAL = 0.005  # seconds


def own_memory(pid: int | None = None) -> int | None:
    """Return the bytes of memory that a process, by default this one, shares with no file; None where no system tells.

    A mapped model file does not count: its pages are given up when they are needed.
    """
    if not sys.platform.startswith("linux"):
        return None
    status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(kib) << 10


def weights_held() -> int:
    """Return the bytes of all weight matrices in this process."""
    return sum(thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), Matrix))


class PeakMemory:
    """Watches this process's own memory during `with` blocks; `nbytes` is the most that was seen."""

    def __init__(self) -> None:
        self.nbytes = own_memory()
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._ended.clear()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while self.nbytes is not None and not self._ended.wait(_INTERVAL):
            self.nbytes = max(self.nbytes, own_memory() or 0)
