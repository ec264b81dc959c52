"""The messages of a conversation, one below the other."""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.widgets.centered import Centered
from app.widgets.controls import label
from app.widgets.message_view import MessageView

_NEAR = 8  # pixels from the bottom that count as the bottom


class TranscriptView(QScrollArea):
    """Scrolls along with what is added while the reader is at the bottom, and stays put otherwise."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._views: list[MessageView] = []
        self._follows = True
        self._hint = label("", self, wraps=True)
        self._hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._column = QVBoxLayout()
        self._column.setContentsMargins(0, 16, 0, 16)
        self._column.setSpacing(16)
        self._column.addWidget(self._hint, 1)
        self._column.addStretch()
        content = Centered(self._column, self)
        content.setBackgroundRole(QPalette.ColorRole.Base)
        self._hint.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self.setWidget(content)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Transcript")
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._scrolled)

    @property
    def views(self) -> list[MessageView]:
        """The messages that are shown, first to last."""
        return list(self._views)

    def set_hint(self, text: str) -> None:
        """Set what stands here while there is no message."""
        self._hint.setText(text)
        self._hint.setVisible(not self._views)

    def add(self, view: MessageView) -> None:
        """Add a message at the end."""
        self._hint.hide()
        self._column.insertWidget(self._column.count() - 1, view)
        view.show()
        self._views.append(view)

    def cut(self, length: int) -> None:
        """Remove all messages but the first `length`."""
        for view in self._views[length:]:
            self._column.removeWidget(view)
            view.hide()
            view.deleteLater()
        del self._views[length:]
        self._hint.setVisible(not self._views)

    @Slot()
    def follow(self) -> None:
        """Go to the bottom, and along with what is added there."""
        self._follows = True
        self._range_changed()

    @Slot()
    def _range_changed(self) -> None:
        if self._follows:
            bar = self.verticalScrollBar()
            bar.setValue(bar.maximum())

    @Slot(int)
    def _scrolled(self, value: int) -> None:
        self._follows = value >= self.verticalScrollBar().maximum() - _NEAR
