"""The files of the library as they change: copied into it, called something, deleted."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.library import Library
from app.state.conversation_state import ConversationState
from app.state.copy_work import CopyWork
from app.state.reports import Reports
from engine.errors import DormouseError


class LibraryFiles(QObject):
    """Changes the library and reports what could not be done."""

    changed = Signal()
    copied = Signal(object)
    """The path of a new copy."""

    def __init__(self, library: Library, reports: Reports, parent: QObject) -> None:
        super().__init__(parent)
        self._library = library
        self._reports = reports
        self._copying: list[CopyWork] = []

    def copy(self, path: Path) -> None:
        """Begin to copy a slot file that can't be changed where it is."""
        copying = CopyWork(path, self._library.new_path(), self)
        copying.succeeded.connect(self.copied)
        copying.failed.connect(self._reports.report)
        self._copying.append(copying)
        copying.start()
        self._reports.inform(f"{path.name} can't be changed where it is, so a copy of it is opened in your library.")

    def remove(self, path: Path) -> None:
        """Delete a slot file that is not open."""
        try:
            self._library.remove(path)
        except DormouseError as error:
            self._reports.tell(str(error))
        self.changed.emit()

    def note(self, conversation: ConversationState) -> None:
        """Take note that the file of a conversation is another one than before, and what it is called."""
        users = conversation.transcript.user_messages()
        if users and conversation.path is not None:
            try:
                self._library.note_title(conversation.path, users[0].text)
            except Exception as error:  # the turn goes on
                self._reports.unforeseen("The title of a conversation could not be noted", error)
        self.changed.emit()

    def close(self) -> None:
        """Stop copying."""
        for copying in self._copying:
            copying.cancel()
        for copying in self._copying:
            copying.close()
