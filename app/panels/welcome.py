"""The first start."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app import resources
from app.state.starter_state import StarterState
from app.widgets.welcome import Welcome


class WelcomePanel(Welcome):
    """Offers the starter model and shows how far fetching it is."""

    def __init__(self, starter: StarterState, parent: QWidget | None = None) -> None:
        super().__init__(resources.icon("icon"), parent)
        self._starter = starter
        self.fetch_requested.connect(starter.fetch)
        self.cancel_requested.connect(starter.cancel)
        starter.changed.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        entry = self._starter.entry
        self.set_starter(entry.name, entry.size, entry.license, is_there=self._starter.path is not None)
        self.set_progress(self._starter.progress)
