"""What stands in the window while there is no model."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QIcon, QPalette
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.widgets.controls import ProgressBar, label, push_button

_WIDTH = 320


class Welcome(QWidget):
    """Offers to fetch the starter model, or to choose a model's file."""

    fetch_requested = Signal()
    cancel_requested = Signal()
    choose_requested = Signal()

    def __init__(self, icon: QIcon, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        picture = _label("", self)
        picture.setAccessibleName("Dormouse")
        picture.setPixmap(icon.pixmap(96, 96))
        title = _label("Welcome to Dormouse", self)
        font = title.font()
        font.setPointSizeF(1.6 * font.pointSizeF())
        title.setFont(font)
        text = "Conversations with a model on this computer, which sleep on disk and wake where they left off."
        subtitle = _label(text, self)
        self._fetch = push_button("", self)
        self._fetch.setDefault(True)
        self._fetch.clicked.connect(self.fetch_requested)
        self._choose = push_button("Choose a Model File…", self)
        self._choose.clicked.connect(self.choose_requested)
        self._bar = ProgressBar("Fetching the model, progress", self)
        self._cancel = push_button("Cancel", self, name="Cancel fetching")
        self._cancel.clicked.connect(self.cancel_requested)
        self._status = _label("", self)
        self._status.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 16, 24, 16)
        column.setSpacing(8)
        column.addStretch(2)
        for words in (picture, title, subtitle):
            column.addWidget(words)
        column.addSpacing(16)
        for widget in (self._fetch, self._choose, self._bar, self._cancel):
            widget.setFixedWidth(_WIDTH)
            column.addWidget(widget, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addWidget(self._status)
        column.addStretch(3)
        self.set_progress(None)

    def set_starter(self, name: str, nbytes: int, license: str, *, is_there: bool) -> None:
        """Say what the starter model is, and whether it was fetched before."""
        self._fetch.setText(f"Use {name}" if is_there else f"Fetch {name}, {nbytes / 1e6:.0f} MB")
        self._fetch.setAccessibleName(self._fetch.text())
        self._status.setText(f"A small model to begin with; license {license}. Larger ones are GGUF files.")

    def set_progress(self, progress: tuple[int, int] | None) -> None:
        """Show bytes done of all while fetching; None while nothing is fetched."""
        is_fetching = progress is not None
        self._fetch.setVisible(not is_fetching)
        self._choose.setVisible(not is_fetching)
        self._bar.setVisible(is_fetching)
        self._cancel.setVisible(is_fetching)
        if progress is not None:
            done, total = progress
            self._bar.set_progress(done, total)
            self._status.setText(f"Fetching: {done / 1e6:.0f} of {total / 1e6:.0f} MB")


def _label(text: str, parent: QWidget) -> QLabel:
    made = label(text, parent, wraps=True)
    made.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return made
