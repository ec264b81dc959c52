"""Fetching the starter model: the first start's one click."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.state.background_work import BackgroundWork
from engine.paths import models_folder
from engine.starter import fetch_starter, starter_entry


class StarterState(QObject):
    """At most one fetch at a time; cancelling is no failure."""

    changed = Signal()
    fetched = Signal(object)
    """The path of the model."""
    failed = Signal(str, str)
    """As of `BackgroundWork`."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.entry = starter_entry()
        self.progress: tuple[int, int] | None = None  # bytes done, of all; None while nothing is fetched
        self._task: BackgroundWork | None = None

    @property
    def path(self) -> Path | None:
        """The starter model's file if it was fetched before."""
        path = models_folder() / self.entry.file_name
        return path if path.is_file() else None

    @Slot()
    def fetch(self) -> None:
        """Begin fetching, unless it is being done."""
        if self._task is not None:
            return
        self._set_progress((0, self.entry.size))
        self._task = BackgroundWork(_fetch, self)
        self._task.progressed.connect(self._progressed)
        self._task.succeeded.connect(self._succeeded)
        self._task.failed.connect(self._failed)
        self._task.start()

    @Slot()
    def cancel(self) -> None:
        """Stop fetching; nothing is left behind."""
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Stop fetching and wait for the end."""
        if self._task is not None:
            self._task.close()

    @Slot(object, object)
    def _progressed(self, done: int, total: int) -> None:
        self._set_progress((done, total))

    @Slot(object)
    def _succeeded(self, path: Path) -> None:
        self._task = None
        self._set_progress(None)
        self.fetched.emit(path)

    @Slot(str, str)
    def _failed(self, text: str, details: str) -> None:
        assert self._task is not None
        was_cancelled = self._task.was_cancelled
        self._task = None
        self._set_progress(None)
        if not was_cancelled:
            self.failed.emit(text, details)

    def _set_progress(self, progress: tuple[int, int] | None) -> None:
        self.progress = progress
        self.changed.emit()


def _fetch(progress: Callable[[int, int], None], cancel: threading.Event) -> Path:
    return fetch_starter(models_folder(), progress=progress, cancel=cancel)
