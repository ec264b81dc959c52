"""A quiet line above the composer: what is going on or about to, and how far it is."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.widgets.controls import ProgressBar, label, let_shrink, push_button
from app.widgets.foreign_words import caption, legible


class Banner(QWidget):
    """One sentence, maybe with a progress bar and a button; hidden while there is nothing to say."""

    activated = Signal()

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._name = name
        self._text = label("", self, wraps=True)
        let_shrink(self._text)
        self._button = push_button("", self, name=f"{name}, next step")
        self._button.hide()
        self._button.clicked.connect(self.activated)
        self._bar = ProgressBar(f"{name}, progress", self)
        self._bar.hide()
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._text, 1)
        row.addWidget(self._button)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 0, 0, 0)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(self._bar)
        self.hide()

    @property
    def text(self) -> str:
        """What it says."""
        return self._text.text()

    def show_text(self, text: str, *, button: str = "") -> None:
        """Say something, or with an empty text nothing; `button` is the text of a button."""
        self._text.setText(legible(text))
        self._text.setAccessibleName(f"{self._name}: {self._text.text()}")
        if button:
            self._button.setText(caption(button))
            self._button.setAccessibleName(button)
        self._button.setVisible(bool(button))
        self.setVisible(bool(text))

    def set_progress(self, done: int, total: int) -> None:
        """Show how far it is; a total of 0 means that nobody knows."""
        self._bar.show()
        self._bar.set_progress(done, total)
