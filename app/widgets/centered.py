"""A column of readable width in the middle."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLayout, QWidget

_WIDTH = 760  # longer lines are hard to read
_MARGIN = 16


class Centered(QWidget):
    """Holds a layout in its middle, no wider than lines should be."""

    def __init__(self, layout: QLayout, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        column = QWidget(self)
        column.setMaximumWidth(_WIDTH)
        column.setLayout(layout)
        row = QHBoxLayout(self)
        row.setContentsMargins(_MARGIN, 0, _MARGIN, 0)
        row.addStretch(1)
        row.addWidget(column, 1000)
        row.addStretch(1)
