"""The model: none, loading, or loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from engine import events
from engine.jobs import Job
from engine.runtime import EngineSettings
from engine.session import Session
from engine.slot.records import ModelIdentity


@dataclass(frozen=True)
class Loading:
    """A model file that is being loaded: bytes done, of all (0 while unknown)."""

    path: Path
    done: int = 0
    total: int = 0
    is_compiling: bool = False  # the kernels, meanwhile; on the first start


class ModelState(QObject):
    """Follows the session's load jobs; of several only the newest counts."""

    changed = Signal()
    loaded = Signal()
    failed = Signal(object)
    """The `Failed` event of the newest load."""

    def __init__(self, session: Session, parent: QObject) -> None:
        super().__init__(parent)
        self._session = session
        self._job: Job | None = None
        self.loading: Loading | None = None
        self.model: events.ModelLoaded | None = None

    @property
    def is_ready_or_loading(self) -> bool:
        """Whether a message that is sent now will find a model."""
        return self.model is not None or self.loading is not None

    @property
    def path(self) -> Path | None:
        """The file of the model that is being loaded, otherwise of the one that is loaded."""
        if self.loading is not None:
            return self.loading.path
        return self.model.path if self.model is not None else None

    @property
    def kernels_note(self) -> str:
        """A sentence on why faster kernels do not compute; empty if there is nothing to say."""
        if self.model is None or self.model.kernels_note is None:
            return ""
        return f"The kernels “{self.model.kernels}” compute: {self.model.kernels_note}."

    def to_offer(self, models: Sequence[ModelIdentity]) -> ModelIdentity | None:
        """Return the newest of the models that a conversation was held with, unless one of them is loaded.

        While a model is being loaded there is nothing to offer.
        """
        if self.loading is not None or not models:
            return None
        if self.model is not None and self.model.fingerprint in {model.fingerprint for model in models}:
            return None
        return models[-1]

    def load(self, path: Path, settings: EngineSettings) -> None:
        """Load a model in place of the present one, and of one that is being loaded."""
        self.cancel()
        self._job = self._session.load_model(path, settings)
        self.loading = Loading(path)
        self.changed.emit()

    def cancel(self) -> None:
        """Stop loading; the model before stays."""
        if self._job is not None:
            self._job.cancel()

    def handle(self, event: events.Event) -> None:
        """Take an event that concerns no conversation."""
        if self._job is None or event.job != self._job.id or self.loading is None:
            return
        if isinstance(event, events.KernelsCompiling):
            self.loading = replace(self.loading, is_compiling=True)
            self.changed.emit()
            return
        if isinstance(event, events.ModelLoading):
            self.loading = Loading(self.loading.path, event.done, event.total)
            self.changed.emit()
            return
        self.loading = self._job = None
        if isinstance(event, events.ModelLoaded):
            self.model = event
        self.changed.emit()
        if isinstance(event, events.ModelLoaded):
            self.loaded.emit()
        elif isinstance(event, events.Failed):
            self.failed.emit(event)
