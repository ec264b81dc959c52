"""One message of the transcript."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QTimer, QUrl, Signal, SignalInstance, Slot
from PySide6.QtGui import QGuiApplication, QPalette
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.widgets.controls import label, tool_button
from app.widgets.rounded_frame import RoundedFrame
from app.widgets.text_view import TextView

_FLUSH_MS = 50
_SHARE = 5  # rendering takes at most one part in so many of the time


class MessageView(QWidget):
    """A message with its versions and what can be done with it. Growing text is rendered in batches."""

    edit_requested = Signal(int)
    regenerate_requested = Signal()
    version_requested = Signal(int, int)
    """The message's id, and -1 or 1 for the version before or after it."""
    link_activated = Signal(QUrl)

    def __init__(self, id: int, role: str, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.id = id
        self.role = role
        self._source = text
        self._pending = ""
        self._text = TextView(self)
        self._text.setAccessibleName({"user": "Your message", "assistant": "Reply"}.get(role, "System message"))
        self._text.link_activated.connect(self.link_activated)
        self._timer = QTimer(self, singleShot=True, interval=_FLUSH_MS)
        self._timer.timeout.connect(self._flush)
        self._note = label("", self, wraps=True)
        self._note.hide()
        self._note.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self._copy = self._button("copy", "Copy the message as it was written", self._copy_source)
        self._edit = self._button("edit", "Write this message anew, as another version", self._request_edit)
        self._again = self._button("regenerate", "Write another version of this reply", self.regenerate_requested)
        self._before = self._button("chevron-left", "Version before", self._request_before)
        self._after = self._button("chevron-right", "Version after", self._request_after)
        self._version = label("", self)
        self._build()
        self._show_text()
        self.set_versions(1, 1)
        self.set_actions(can_copy=bool(text), can_edit=False, can_regenerate=False)

    @property
    def source(self) -> str:
        """The message's text as it was written."""
        return self._source

    def grow(self, text: str) -> None:
        """Add to the text; it is shown a little later, together with what comes meanwhile."""
        self._source += text
        self._pending += text
        if not self._timer.isActive():
            self._timer.start()

    def set_text(self, text: str) -> None:
        """Show this text instead of the present one."""
        self._timer.stop()
        self._flush()
        if text != self._source:
            self._source = text
            self._show_text()

    def set_note(self, text: str) -> None:
        """Say something about the message below it; empty for nothing."""
        self._note.setText(text)
        self._note.setVisible(bool(text))

    def set_versions(self, number: int, count: int) -> None:
        """Say that this is version `number` (from 1) of `count`."""
        self._version.setText(f"{number}/{count}")
        self._version.setAccessibleName(f"Version {number} of {count}")
        self._before.setEnabled(number > 1)
        self._after.setEnabled(number < count)
        for widget in (self._before, self._version, self._after):
            widget.setVisible(count > 1)

    def set_actions(self, *, can_copy: bool, can_edit: bool, can_regenerate: bool) -> None:
        """Offer what can be done with the message now."""
        self._copy.setVisible(can_copy)
        self._edit.setVisible(can_edit)
        self._again.setVisible(can_regenerate)

    def _build(self) -> None:
        is_user = self.role == "user"
        bubble = RoundedFrame(self, shade=0.04) if is_user else QWidget(self)
        inside = QVBoxLayout(bubble)
        inside.setContentsMargins(*((12, 8, 12, 8) if is_user else (0, 0, 0, 0)))
        inside.addWidget(self._text)
        tools = QHBoxLayout()
        tools.setSpacing(4)
        for widget in (self._before, self._version, self._after, self._copy, self._edit, self._again):
            tools.addWidget(widget)
        tools.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(48 if is_user else 0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(bubble)
        column.addWidget(self._note)
        column.addLayout(tools)

    def _button(self, icon_name: str, name: str, clicked: Callable[[], None] | SignalInstance) -> QToolButton:
        button = tool_button(icon_name, name, self)
        button.clicked.connect(clicked)
        return button

    def _show_text(self) -> None:
        if self.role == "user":
            self._text.setPlainText(self._source)
        else:
            self._text.set_markdown(self._source)

    @Slot()
    def _flush(self) -> None:
        if not self._pending:
            return
        started = time.perf_counter()
        text, self._pending = self._pending, ""
        self._text.grow(text)
        milliseconds = 1000 * (time.perf_counter() - started)
        self._timer.setInterval(max(_FLUSH_MS, round(_SHARE * milliseconds)))

    @Slot()
    def _copy_source(self) -> None:
        QGuiApplication.clipboard().setText(self._source)

    @Slot()
    def _request_edit(self) -> None:
        self.edit_requested.emit(self.id)

    @Slot()
    def _request_before(self) -> None:
        self.version_requested.emit(self.id, -1)

    @Slot()
    def _request_after(self) -> None:
        self.version_requested.emit(self.id, 1)
