"""The dialog about a problem in the program itself."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPlainTextEdit, QVBoxLayout, QWidget

from app.widgets.controls import label
from app.widgets.foreign_words import legible, without_middle

_MOST_PROBLEMS = 20
_LONGEST_DETAILS = 20_000


class ProblemDialog(QDialog):
    """Says in a sentence what went wrong, and has the details ready to copy."""

    def __init__(self, text: str, details: str, log: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Dormouse ran into a problem")
        self.resize(640, 400)
        self._problems = 1

        heading = label(legible(text), self, wraps=True)
        font = heading.font()
        font.setBold(True)
        heading.setFont(font)
        advice = f"What you wrote is saved. The details below are also in {log}."
        self._details = QPlainTextEdit(without_middle(details, _LONGEST_DETAILS), self)
        self._details.setAccessibleName("Details of the problem")
        self._details.setReadOnly(True)
        self._details.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._details.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))

        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, self)
        copy = buttons.addButton("&Copy Details", QDialogButtonBox.ButtonRole.ActionRole)
        copy.clicked.connect(self.copy_details)
        buttons.rejected.connect(self.reject)

        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 16, 16, 16)
        layout.setSpacing(8)
        layout.addWidget(heading)
        layout.addWidget(label(advice, self, wraps=True))
        layout.addWidget(self._details, stretch=1)
        layout.addWidget(buttons)

    @property
    def details(self) -> str:
        """The text that is copied."""
        return self._details.toPlainText()

    def add(self, details: str) -> None:
        """Append another problem; after many, say only that there are more."""
        self._problems += 1
        if self._problems <= _MOST_PROBLEMS:
            self._details.appendPlainText(f"\n{without_middle(details, _LONGEST_DETAILS)}")
        elif self._problems == _MOST_PROBLEMS + 1:
            self._details.appendPlainText("\nThere are more problems; the log has them.")

    @Slot()
    def copy_details(self) -> None:
        """Put the details into the clipboard."""
        QGuiApplication.clipboard().setText(self.details)
