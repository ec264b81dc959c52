"""One message of the transcript."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QLocale, Qt, QTimer, QUrl, Signal, SignalInstance, Slot
from PySide6.QtGui import QGuiApplication, QPalette
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.widgets.controls import label, push_button, tool_button
from app.widgets.markdown_sections import SLICE_WORK
from app.widgets.rounded_frame import RoundedFrame
from app.widgets.text_view import TextView

VIEW_WORK = 4_000
"""What a message costs beside its text."""
_FLUSH_MS = 50
_SHARE = 5  # rendering takes at most one part in so many of the time


class MessageView(QWidget):
    """A message with its versions and what can be done with it.

    Growing text is rendered in batches, and all text in slices: the first one at once, the others as `advance` is
    called. The end of a long text is left out; a button asks for all of it.
    """

    edit_requested = Signal(int)
    regenerate_requested = Signal()
    version_requested = Signal(int, int)
    """The message's id, and -1 or 1 for the version before or after it."""
    whole_requested = Signal(str)
    """The text of a message that is too long for the transcript."""
    link_activated = Signal(QUrl)
    fell_behind = Signal()
    """There is more to show."""

    def __init__(self, id: int, role: str, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.id = id
        self.role = role
        self._source = text
        self._pending: list[str] = []
        self._text = TextView(self)
        self._text.setAccessibleName({"user": "Your message", "assistant": "Reply"}.get(role, "System message"))
        self._text.link_activated.connect(self.link_activated)
        self._text.fell_behind.connect(self.fell_behind)
        self._timer = QTimer(self, singleShot=True, interval=_FLUSH_MS)
        self._timer.timeout.connect(self._flush)
        self._note = label("", self, wraps=True)
        self._note.hide()
        self._note.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self._whole = push_button("Show All", self)
        self._whole.clicked.connect(self._request_whole)
        self._whole.hide()
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

    @property
    def is_behind(self) -> bool:
        """Whether there is more to show."""
        return self._text.shown.is_behind

    @property
    def work(self) -> int:
        """What the message costs where all messages are laid out again."""
        return VIEW_WORK + self._text.shown.work

    def advance(self, work: int = SLICE_WORK) -> int:
        """Show more of the text, about as much as `work` allows; return what it took."""
        done = self._text.shown.advance(work)
        self._update_whole()
        return done

    def grow(self, text: str) -> None:
        """Add to the text; it is shown a little later, together with what comes meanwhile."""
        self._source += text
        self._pending.append(text)
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
        inside.addWidget(self._whole, 0, Qt.AlignmentFlag.AlignLeft)
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
        self._text.shown.set_source(self._source, is_markdown=self.role != "user")
        self._shown_more()

    def _shown_more(self) -> None:
        self._update_whole()
        if self.is_behind:
            self.fell_behind.emit()

    def _update_whole(self) -> None:
        is_folded = self._text.shown.is_folded
        if is_folded:
            size = QLocale().formattedDataSize(len(self._source.encode("utf-8", "replace")), 1, _SIZES)
            self._whole.setText(f"… Show All ({size})")
            self._whole.setAccessibleName(f"Show all of this message, {size}")
        if is_folded != self._whole.isVisibleTo(self):
            self._whole.setVisible(is_folded)

    @Slot()
    def _flush(self) -> None:
        if not self._pending:
            return
        started = time.perf_counter()
        self._text.shown.grow("".join(self._pending))
        self._pending.clear()
        self._shown_more()
        milliseconds = 1000 * (time.perf_counter() - started)
        self._timer.setInterval(max(_FLUSH_MS, round(_SHARE * milliseconds)))

    @Slot()
    def _copy_source(self) -> None:
        QGuiApplication.clipboard().setText(self._source)

    @Slot()
    def _request_whole(self) -> None:
        self.whole_requested.emit(self._source)

    @Slot()
    def _request_edit(self) -> None:
        self.edit_requested.emit(self.id)

    @Slot()
    def _request_before(self) -> None:
        self.version_requested.emit(self.id, -1)

    @Slot()
    def _request_after(self) -> None:
        self.version_requested.emit(self.id, 1)


_SIZES = QLocale.DataSizeFormat.DataSizeSIFormat
