"""A frame with round corners in the colors of the palette.

Painted, as style sheets keep the widgets below them from following a change between dark and light.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QPen
from PySide6.QtWidgets import QWidget

from app.widgets.colors import mixed
from app.widgets.painting import nothing, while_painting

_RADIUS = 10.0


class RoundedFrame(QWidget):
    """Shades its background a little, from 0 (as what is around it) to 1, and draws a border."""

    def __init__(self, parent: QWidget | None = None, *, shade: float = 0.0) -> None:
        super().__init__(parent)
        self._shade = shade
        self._is_highlighted = False

    def set_highlighted(self, is_highlighted: bool) -> None:
        """Draw the border in the highlight's color, as around what has the focus."""
        self._is_highlighted = is_highlighted
        self.update()

    @while_painting(nothing)
    def paintEvent(self, _event: QPaintEvent) -> None:
        palette = self.palette()
        highlight = palette.color(QPalette.ColorRole.Highlight)
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(highlight if self._is_highlighted else mixed(palette, 0.2), 1))
            painter.setBrush(mixed(palette, self._shade))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), _RADIUS, _RADIUS)
