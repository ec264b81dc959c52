"""The list of conversations."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QMessageBox, QVBoxLayout, QWidget

from app.state.app_state import AppState
from app.widgets.controls import message_box
from app.widgets.foreign_words import legible
from app.widgets.library_list import LibraryList
from engine.errors import DormouseError


class LibraryPanel(QWidget):
    """Lists the library's slot files; opens and deletes them."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._list = LibraryList(self)
        self._list.opened.connect(self._open)
        self._list.removed.connect(self._ask_to_remove)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._list)
        state.files.changed.connect(self._update)
        state.shown.conversation_changed.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        path = self._state.conversation.path
        try:
            self._list.set_entries(self._state.library.entries())
        except DormouseError as error:
            self._state.reports.tell(str(error))
        else:
            self._state.files.read_titles()
        self._list.set_current(str(path) if path else None)

    @Slot(str)
    def _open(self, path: str) -> None:
        self._state.open_conversation(Path(path))

    @Slot(str)
    def _ask_to_remove(self, path: str) -> None:
        question = "Delete this conversation and all that the model remembers of it?"
        box = message_box("Delete Conversation", question, legible(path), self)
        box.addButton(QMessageBox.StandardButton.Cancel)
        delete = box.addButton("Delete", QMessageBox.ButtonRole.DestructiveRole)
        delete.clicked.connect(lambda: self._state.remove_conversation(Path(path)))
        box.open()
