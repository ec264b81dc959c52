"""The dialog about a problem in the program itself."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPlainTextEdit, QVBoxLayout, QWidget

_MOST_PROBLEMS = 20


class ProblemDialog(QDialog):
    """Says in a sentence what went wrong, and has the details ready to copy."""

    def __init__(self, text: str, details: str, log: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Dormouse ran into a problem")
        self.resize(640, 400)
        self._problems = 1

        heading = QLabel(text, self)
        heading.setWordWrap(True)
        font = heading.font()
        font.setBold(True)
        heading.setFont(font)
        advice = QLabel(f"What you wrote is saved. The details below are also in {log}.", self)
        advice.setWordWrap(True)
        self._details = QPlainTextEdit(details, self)
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
        layout.addWidget(advice)
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
            self._details.appendPlainText(f"\n{details}")
        elif self._problems == _MOST_PROBLEMS + 1:
            self._details.appendPlainText("\nThere are more problems; the log has them.")

    @Slot()
    def copy_details(self) -> None:
        """Put the details into the clipboard."""
        QGuiApplication.clipboard().setText(self.details)
