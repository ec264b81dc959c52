"""The bars of the prefill plot, painted in whole pixels whatever the zoom."""

from __future__ import annotations

from collections.abc import Sequence

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFont, QFontMetricsF, QPainter, QPalette, QPen, QPolygonF, QTransform
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from app.widgets.colors import mixed
from app.widgets.painting import nothing, while_painting
from app.widgets.turn_bar import TurnBar

HEADROOM = 56  # pixels above the highest bar: the word "restored", a time, a mark
_WIDEST = 36
_MARK = 4  # half the size of a mark
_GAP = 4
_CORNERS = {
    "restored": ((0, -_MARK), (_MARK, 0), (0, _MARK), (-_MARK, 0)),
    "cold": ((0, -_MARK), (_MARK, _MARK), (-_MARK, _MARK)),
}


class TurnBars(pg.GraphicsObject):
    """One bar per turn, at x = 0, 1, 2, ...: tokens reused below, tokens evaluated above.

    Only what is in view is painted; texts that would touch others are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turns: Sequence[TurnBar] = ()
        self._hovered: int | None = None
        self.set_style(QPalette(), QFont())

    @property
    def hovered(self) -> int | None:
        """The turn that is lifted out."""
        return self._hovered

    def set_turns(self, turns: Sequence[TurnBar]) -> None:
        """Show other turns."""
        self.prepareGeometryChange()
        self._turns = turns
        self._hovered = None
        self.update()

    def set_style(self, palette: QPalette, font: QFont) -> None:
        """Take the colors from a palette, and write the times in a font."""
        self._evaluated = palette.color(QPalette.ColorRole.Highlight)
        self._reused = mixed(palette, 0.25)
        self._hatch = QBrush(mixed(palette, 0.6), Qt.BrushStyle.BDiagPattern)
        self._ink = mixed(palette, 0.8)
        self._band = mixed(palette, 0.08)
        self._paper = palette.color(QPalette.ColorRole.Window)
        self._font = font
        self.update()

    def set_hovered(self, index: int | None) -> None:
        """Lift one turn out, or none."""
        if index != self._hovered:
            self._hovered = index
            self.update()

    @while_painting(QRectF)
    def boundingRect(self) -> QRectF:
        highest = max((turn.total for turn in self._turns), default=1)
        return QRectF(-1, 0, len(self._turns) + 1, 100 * highest)  # far above, for what stands over the bars

    @while_painting(nothing)
    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        view = self.viewRect()
        in_view = range(max(0, int(view.left())), min(len(self._turns), int(view.right()) + 2))
        to_pixels = painter.worldTransform()
        sight = to_pixels.mapRect(view)
        painter.resetTransform()
        painter.setFont(self._font)
        tops = {index: self._paint_bar(painter, index, to_pixels, sight) for index in in_view}
        self._paint_restores(painter, tops, to_pixels, sight)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_marks(painter, tops, crowded=to_pixels.m11() < 2 * _MARK + _GAP)
        self._paint_times(painter, tops, sight)

    def _paint_bar(self, painter: QPainter, index: int, to_pixels: QTransform, sight: QRectF) -> QPointF:
        """Paint the bar of a turn and return the middle of its upper end, in pixels."""
        turn = self._turns[index]
        pitch = to_pixels.m11()
        width = max(2, min(_WIDEST, round(0.66 * pitch)))
        center = to_pixels.map(QPointF(index, 0))
        left, bottom = round(center.x() - width / 2), round(center.y())
        middle = round(to_pixels.map(QPointF(index, turn.cache_n)).y())
        top = round(to_pixels.map(QPointF(index, turn.total)).y())
        if turn.prompt_n:
            top = min(top, middle - 2)  # never too little to be seen
        if index == self._hovered:
            painter.fillRect(QRectF(center.x() - pitch / 2, sight.top(), pitch, sight.height()), self._band)
        reused = QRectF(left, middle, width, bottom - middle)
        painter.fillRect(reused, self._reused)
        if turn.source == "restored":
            painter.fillRect(reused, self._hatch)
        painter.fillRect(QRectF(left, top, width, middle - top), self._evaluated)
        return QPointF(left + width / 2, top)

    def _paint_restores(
        self, painter: QPainter, tops: dict[int, QPointF], to_pixels: QTransform, sight: QRectF
    ) -> None:
        """Paint a dashed line before each turn that woke from disk, and the word where there is room."""
        metrics = QFontMetricsF(self._font)
        width = metrics.horizontalAdvance("restored")
        placed = sight.right() + 2 * width
        for index in reversed(tops):
            if self._turns[index].source != "restored":
                continue
            x = round(to_pixels.map(QPointF(index - 0.5, 0)).x()) + 0.5
            painter.setPen(QPen(self._ink, 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(x, sight.top()), QPointF(x, sight.bottom()))
            left = x + _GAP if x + _GAP + width < sight.right() else x - _GAP - width
            if left + width < placed:
                place = QRectF(left, sight.top(), width, metrics.height())
                self._write(painter, place, "restored")
                placed = min(left, x) - _GAP

    def _paint_marks(self, painter: QPainter, tops: dict[int, QPointF], *, crowded: bool) -> None:
        """Paint the shape of each turn's source over its bar; in a crowd not that of the usual one."""
        painter.setPen(QPen(self._ink, 1.2))
        for index, top in tops.items():
            source = self._turns[index].source
            if source != "live" or not crowded:
                painter.setBrush(self._ink if source == "restored" else Qt.BrushStyle.NoBrush)
                _paint_mark(painter, source, top - QPointF(0, _MARK + _GAP))

    def _paint_times(self, painter: QPainter, tops: dict[int, QPointF], sight: QRectF) -> None:
        """Paint the time of each prefill over its mark, as many as there is room for: first the unusual ones."""
        metrics = QFontMetricsF(self._font)
        widths: dict[str, float] = {}
        placed: list[tuple[float, float]] = []
        for index in sorted(tops, key=lambda index: (self._turns[index].source == "live", -index)):
            text = self._turns[index].duration
            if text not in widths:
                widths[text] = metrics.horizontalAdvance(text) + 2 * _GAP
            left = max(sight.left(), min(tops[index].x() - widths[text] / 2, sight.right() - widths[text]))
            right = left + widths[text]
            if any(left < other_right and other_left < right for other_left, other_right in placed):
                continue
            placed.append((left, right))
            ceiling = min(top.y() for top in tops.values() if left - _MARK < top.x() < right + _MARK)
            bottom = ceiling - 2 * _MARK - _GAP
            self._write(painter, QRectF(left, bottom - metrics.height(), right - left, metrics.height()), text)

    def _write(self, painter: QPainter, place: QRectF, text: str) -> None:
        painter.fillRect(place, self._paper)  # a dashed line may run here
        painter.setPen(self._ink)
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextDontClip, text)


def _paint_mark(painter: QPainter, source: str, center: QPointF) -> None:
    if source == "live":
        painter.drawEllipse(center, _MARK - 1, _MARK - 1)
        return
    painter.drawPolygon(QPolygonF([center + QPointF(x, y) for x, y in _CORNERS.get(source, ())]))
