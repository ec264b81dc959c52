"""The files of the library as they change: copied into it, called something, deleted."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.library import Known, Library, Unread, look_into
from app.state.background_work import BackgroundWork
from app.state.conversation_state import ConversationState
from app.state.copy_work import CopyWork
from app.state.reports import Reports
from engine.errors import DormouseError

_PATIENCE = 0.3  # seconds until titles are shown that were read


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
        self._reading: BackgroundWork | None = None
        self._is_closed = False

    def read_titles(self) -> None:
        """Begin to look into the files whose titles are not known, in a thread: one of them may be made to take long.

        `changed` follows if that tells anything new.
        """
        if self._reading is None and not self._is_closed and (unread := self._library.unread()):
            self._reading = BackgroundWork(partial(_read_titles, unread), self)
            self._reading.succeeded.connect(self._titles_read)
            self._reading.failed.connect(self._reading_failed)
            self._reading.start()

    @Slot(object)
    def _titles_read(self, found: dict[str, Known]) -> None:
        self._end_reading()
        if found:
            self._library.learn(found)
            self.changed.emit()

    @Slot(str, str)
    def _reading_failed(self, text: str, details: str) -> None:
        self._end_reading()
        self._reports.report(text, details)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.deleteLater()
            self._reading = None

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
        """Stop copying and reading."""
        self._is_closed = True
        works = [*self._copying, *([self._reading] if self._reading is not None else [])]
        for work in works:
            work.cancel()
        for work in works:
            work.close()


def _read_titles(unread: list[Unread], _progress: object, cancelled: threading.Event) -> dict[str, Known]:
    """Look into files for a while; those that are left come with the next reading."""
    found: dict[str, Known] = {}
    deadline = time.monotonic() + _PATIENCE
    for path, status in unread:
        if cancelled.is_set() or (found and time.monotonic() > deadline):
            break
        if (known := look_into(path, status)) is not None:
            found[path] = known
    return found
