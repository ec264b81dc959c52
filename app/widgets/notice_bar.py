"""Errors and hints, inside the window, until they are closed."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.widgets.colors import mixed
from app.widgets.controls import label, let_shrink, push_button, tool_button
from app.widgets.foreign_words import caption, legible
from app.widgets.painting import nothing, while_painting

_MOST = 3
_ACCENT_WIDTH = 4
_ACCENTS = {"error": "#d0453e", "information": "#3d82d6"}  # legible on light and on dark


class NoticeBar(QWidget):
    """One sentence, with a next step where there is one."""

    def __init__(self, text: str, kind: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.text = text
        self._run: Callable[[], object] | None = None
        self._accent = QColor(_ACCENTS[kind])
        self.setAccessibleName("Error" if kind == "error" else "Notice")
        sentence = label(legible(text), self, wraps=True)
        sentence.setAccessibleName(sentence.text())
        sentence.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        let_shrink(sentence)
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(12, 6, 6, 6)
        self._row.setSpacing(8)
        self._row.addWidget(sentence, 1)
        close = tool_button("close", "Close this notice", self)
        close.clicked.connect(self.dismiss)
        self._row.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)

    def set_action(self, text: str, run: Callable[[], object]) -> None:
        """Add the button of the next step."""
        self._run = run
        button = push_button(caption(text), self, name=text)
        button.clicked.connect(self._act)
        self._row.insertWidget(1, button)

    @while_painting(nothing)
    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.fillRect(self.rect(), mixed(self.palette(), 0.04))
            painter.fillRect(0, 0, _ACCENT_WIDTH, self.height(), self._accent)
            painter.fillRect(0, self.height() - 1, self.width(), 1, mixed(self.palette(), 0.14))

    @Slot()
    def dismiss(self) -> None:
        """Take it away."""
        self.hide()
        self.deleteLater()

    @Slot()
    def _act(self) -> None:
        self.dismiss()
        if self._run is not None:
            self._run()


class NoticeStack(QWidget):
    """The newest notices, one below the other; the same text is shown once."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(0)

    @property
    def bars(self) -> list[NoticeBar]:
        """What is shown, oldest first."""
        return [bar for bar in self.findChildren(NoticeBar) if not bar.isHidden()]

    def add(self, bar: NoticeBar) -> None:
        """Show a notice; the oldest goes when there are too many."""
        for other in self.bars:
            if other.text == bar.text:
                other.dismiss()
        self._column.addWidget(bar)
        bar.show()
        for other in self.bars[:-_MOST]:
            other.dismiss()
