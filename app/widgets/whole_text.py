"""A text of any length, to be read and copied."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import QSize, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication, QTextCursor
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPlainTextEdit, QVBoxLayout, QWidget

from app.widgets.markdown_sections import Sections, lines_of

_SIZE = QSize(800, 600)


class WholeText(QDialog):
    """Shows a text as it was written. It is filled slice by slice, and lays out what is seen of it alone."""

    def __init__(self, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._source = text
        self._slices = _slices(text)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Whole Message")
        self.resize(_SIZE.boundedTo(self.screen().availableSize()))
        self._text = QPlainTextEdit(self)
        self._text.setAccessibleName("Whole message")
        self._text.setReadOnly(True)
        self._text.setUndoRedoEnabled(False)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, self)
        copy = buttons.addButton("&Copy All", QDialogButtonBox.ButtonRole.ActionRole)
        copy.clicked.connect(self._copy)
        for button in buttons.buttons():
            button.setAccessibleName(button.text().replace("&", ""))
        buttons.rejected.connect(self.reject)
        buttons.button(QDialogButtonBox.StandardButton.Close).setDefault(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 16, 16)
        column.setSpacing(8)
        column.addWidget(self._text, 1)
        column.addWidget(buttons)
        self._filling = QTimer(self, interval=0)
        self._filling.timeout.connect(self._fill)
        self._filling.start()
        self._fill()

    @property
    def is_filled(self) -> bool:
        """Whether the end of the text is there."""
        return not self._filling.isActive()

    @Slot()
    def _fill(self) -> None:
        if (lines := next(self._slices, None)) is None:
            self._filling.stop()
            return
        cursor = QTextCursor(self._text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(lines)

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._source)


def _slices(text: str) -> Iterator[str]:
    sections = Sections(is_markdown=False)
    sections.add(text)
    while (piece := sections.take()) is not None:
        yield lines_of(piece.text)
    if (rest := sections.rest()) is not None:
        yield lines_of(rest.text)
