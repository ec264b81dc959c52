"""Where messages are written."""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QMimeData, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.widgets.controls import label, push_button
from app.widgets.rounded_frame import RoundedFrame

_MOST_LINES = 8
_LONGEST_TEXT, _LONGEST_LINE = 100_000, 10_000


def can_be_edited(text: str) -> bool:
    """Tell whether the editor lays out a text at once."""
    return len(text) <= _LONGEST_TEXT and max(map(len, text.split("\n"))) <= _LONGEST_LINE


class Editor(QPlainTextEdit):
    """Plain text that grows up to some lines. Return submits it, except while an input method composes."""

    submitted = Signal()
    focus_changed = Signal(bool)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._is_composing = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.viewport().setAutoFillBackground(False)
        self.document().setDocumentMargin(2)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_return = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_return and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            if not self._is_composing:
                self.submitted.emit()
            return
        super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        self._is_composing = bool(event.preeditString())
        super().inputMethodEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return not source.hasUrls() and super().canInsertFromMimeData(source)  # files are dropped on the window

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit(False)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        return QSize(80, 0)

    @Slot()
    def _fit(self) -> None:
        n_lines = max(1, min(_MOST_LINES, round(self.document().size().height())))
        height = n_lines * self.fontMetrics().lineSpacing() + 2 * self.document().documentMargin()
        self.setFixedHeight(math.ceil(height) + 2)


class Composer(RoundedFrame):
    """The editor with its buttons: Send, or Stop while a turn is in progress."""

    submitted = Signal(str)
    """The text of a message; it stays here until `clear` is called."""
    stop_requested = Signal()
    edit_cancelled = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._is_busy = False
        self._draft: str | None = None  # what stood here before a message was edited
        self.editor = Editor(self)
        self.editor.setPlaceholderText("Write a message")
        self.editor.setAccessibleName("Message")
        self._send = push_button("Send", self, tool_tip="Send the message (Return)")
        self._stop = push_button("Stop", self, tool_tip="Stop the reply (Esc)")
        self._heading = label("Another version of your message", self)
        self._cancel = push_button("Cancel", self, name="Cancel editing")
        for widget in (self._stop, self._heading, self._cancel):
            widget.hide()
        self._build()
        self.editor.textChanged.connect(self._update)
        self.editor.submitted.connect(self._submit)
        self.editor.focus_changed.connect(self.set_highlighted)
        self._send.clicked.connect(self._submit)
        self._stop.clicked.connect(self.stop_requested)
        self._cancel.clicked.connect(self.edit_cancelled)
        self._update()

    def set_busy(self, is_busy: bool) -> None:
        """Offer Stop instead of Send while a turn is in progress."""
        self._is_busy = is_busy
        self._send.setVisible(not is_busy)
        self._stop.setVisible(is_busy)

    def begin_editing(self, text: str) -> None:
        """Let a message be written anew; what stood here comes back afterwards."""
        if self._draft is None:
            self._draft = self.editor.toPlainText()
        self._show_editing(True)
        self.set_text(text)

    def end_editing(self) -> None:
        """Go back to what stood here before."""
        draft, self._draft = self._draft, None
        self._show_editing(False)
        self.set_text(draft or "")

    def set_text(self, text: str) -> None:
        """Put a text here, the cursor behind it."""
        self.editor.setPlainText(text)
        self.editor.moveCursor(self.editor.textCursor().MoveOperation.End)
        self.editor.setFocus()

    def clear(self) -> None:
        """Empty the editor."""
        self.editor.clear()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._draft is not None:
            self.edit_cancelled.emit()
        else:
            super().keyPressEvent(event)

    def _build(self) -> None:
        heading = QHBoxLayout()
        heading.addWidget(self._heading, 1)
        heading.addWidget(self._cancel)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self.editor, 1)
        for button in (self._send, self._stop):
            row.addWidget(button, 0, Qt.AlignmentFlag.AlignBottom)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 8, 8)
        column.setSpacing(4)
        column.addLayout(heading)
        column.addLayout(row)

    def _show_editing(self, is_editing: bool) -> None:
        self._heading.setVisible(is_editing)
        self._cancel.setVisible(is_editing)

    @Slot()
    def _submit(self) -> None:
        text = self.editor.toPlainText()
        if text.strip() and not self._is_busy:
            self.submitted.emit(text)

    @Slot()
    def _update(self) -> None:
        self._send.setEnabled(bool(self.editor.toPlainText().strip()))
