"""The one place of the window that reads `resources/`."""

from __future__ import annotations

from importlib import resources
from typing import ClassVar

from PySide6.QtCore import QByteArray, QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QGuiApplication, QIcon, QIconEngine, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer

_FOLDER = resources.files("resources")
_INK = b"currentColor"


def icon(name: str) -> QIcon:
    """Return the icon `resources/<name>.svg`, sharp at any size and scale.

    What the file draws in `currentColor` has the color of the texts on buttons, in every palette that comes.
    Raises FileNotFoundError.
    """
    return QIcon(_SvgIconEngine((_FOLDER / f"{name}.svg").read_bytes()))


class _SvgIconEngine(QIconEngine):
    """Paints an SVG whenever it is shown, and so in the size and the colors of then."""

    _clones: ClassVar[list[QIconEngine]] = []
    """Qt owns what `clone` returns, but PySide does not know and would delete it with its last reference."""

    def __init__(self, svg: bytes) -> None:
        super().__init__()
        self._svg = svg
        self._renderers: dict[str, QSvgRenderer] = {}

    def clone(self) -> QIconEngine:
        clone = _SvgIconEngine(self._svg)
        self._clones.append(clone)
        return clone

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        groups = {QIcon.Mode.Disabled: QPalette.ColorGroup.Disabled}
        role = QPalette.ColorRole.HighlightedText if mode == QIcon.Mode.Selected else QPalette.ColorRole.ButtonText
        color = QGuiApplication.palette().color(groups.get(mode, QPalette.ColorGroup.Active), role).name()
        if color not in self._renderers:
            self._renderers[color] = QSvgRenderer(QByteArray(self._svg.replace(_INK, color.encode())))
        renderer = self._renderers[color]
        size = QSize(renderer.defaultSize()).scaled(rect.size(), Qt.AspectRatioMode.KeepAspectRatio)
        target = QRect(QPoint(), size)
        target.moveCenter(rect.center())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        renderer.render(painter, QRectF(target))

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        pixmap = QPixmap(size)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        self.paint(painter, QRect(QPoint(), size), mode, state)
        painter.end()
        return pixmap
