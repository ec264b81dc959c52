"""The chart inside the prefill plot, apart because importing pyqtgraph takes half a second."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Slot
from PySide6.QtGui import QFont, QMouseEvent, QPalette, QResizeEvent
from PySide6.QtWidgets import QFrame, QToolTip, QWidget

from app.widgets.colors import mixed
from app.widgets.foreign_words import tool_tip
from app.widgets.painting import while_painting
from app.widgets.turn_bar import TurnBar
from app.widgets.turn_bars import HEADROOM, TurnBars

_SHOWN = 30  # turns, unless all are asked for
_FEWEST = 6  # turns that there is room for
_TICK_PITCH = 44  # pixels between two numbers below the bars
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class TurnPlot(pg.PlotWidget):
    """Bars over turns. The wheel and dragging go along the turns; a double click shows all, or the last ones again."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self._turns: Sequence[TurnBar] = ()
        self._shows_all = False
        super().__init__(
            parent, axisItems={"left": _TokenAxis("left"), "bottom": _TurnAxis("bottom")}, enableMenu=False
        )
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.hideButtons()
        self.setMouseEnabled(x=True, y=False)
        self.setMouseTracking(True)
        self._bars = TurnBars()
        self._view = self.getViewBox()
        self._view.setDefaultPadding(0)
        self._view.disableAutoRange()
        self.addItem(self._bars, ignoreBounds=True)
        self._view.sigXRangeChanged.connect(self._fit_height)

    @property
    def turns_in_view(self) -> range:
        """The turns of which at least half can be seen."""
        left, right = self._view.viewRange()[0]
        return range(max(0, ceil(left)), min(len(self._turns), int(right) + 1))

    @property
    def highlighted(self) -> int | None:
        """The turn under the mouse."""
        return self._bars.hovered

    def set_turns(self, turns: Sequence[TurnBar]) -> None:
        """Show other turns. Who looks at the newest goes on to do so, who looks at older ones is left there."""
        follows = self._view.viewRange()[0][1] >= len(self._turns) - 0.5
        self._turns = turns
        self._bars.set_turns(turns)
        self.getAxis("bottom").set_labels([turn.label for turn in turns])
        end = max(len(turns), _FEWEST)
        self._view.setLimits(xMin=-0.5, xMax=end - 0.5, minXRange=min(end, _FEWEST))
        if follows:
            self._show_end()
        self._fit_height()

    def set_style(self, palette: QPalette, font: QFont) -> None:
        """Take the colors from a palette, and write in a font."""
        self.setBackground(palette.color(QPalette.ColorRole.Window))
        self._bars.set_style(palette, font)
        for name in ("left", "bottom"):
            axis = self.getAxis(name)
            axis.setStyle(tickFont=font)
            axis.setPen(mixed(palette, 0.3))
            axis.setTextPen(mixed(palette, 0.7))

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        if event is not None:  # pyqtgraph calls it so while it builds
            self._fit_height()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        self._highlight(self._turn_at(event.position()), event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._shows_all = not self._shows_all
        self._show_end()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._highlight(None)

    def _turn_at(self, position: QPointF) -> int | None:
        scene = self.mapToScene(position.toPoint())
        if not self._view.sceneBoundingRect().contains(scene):
            return None
        index = round(self._view.mapSceneToView(scene).x())
        return index if 0 <= index < len(self._turns) else None

    def _highlight(self, index: int | None, event: QMouseEvent | None = None) -> None:
        self._bars.set_hovered(index)
        if index is None or event is None:
            QToolTip.hideText()
        else:
            QToolTip.showText(event.globalPosition().toPoint(), tool_tip(self._turns[index].tooltip), self)

    def _show_end(self) -> None:
        end = max(len(self._turns), _FEWEST)
        shown = end if self._shows_all else min(end, _SHOWN)
        self._view.setXRange(end - shown - 0.5, end - 0.5, padding=0)

    @Slot()
    def _fit_height(self) -> None:
        """Let the highest bar in view end where the room for its time begins."""
        highest = max((self._turns[index].total for index in self.turns_in_view), default=1)
        height = max(self._view.height(), HEADROOM + 1)
        self._view.setYRange(0, max(highest, 1) * height / (height - HEADROOM), padding=0)


class _TokenAxis(pg.AxisItem):
    """Whole numbers of tokens, written out."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self.enableAutoSIPrefix(False)
        self.setLabel("tokens")

    @while_painting(list)
    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, list[float]]]:
        levels = super().tickValues(minVal, maxVal, size)
        return [(spacing, values) for spacing, values in levels[:2] if spacing >= 1]

    @while_painting(list)
    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [f"{value:,.0f}" for value in values]


class _TurnAxis(pg.AxisItem):
    """The labels of the turns, as many as there is room for."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self._labels: Sequence[str] = ()

    def set_labels(self, labels: Sequence[str]) -> None:
        """Set what stands below x = 0, 1, 2, ..."""
        self._labels = labels
        self.picture = None  # pyqtgraph's cache of what it drew
        self.update()

    @while_painting(list)
    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, list[float]]]:
        wanted = (maxVal - minVal) * _TICK_PITCH / max(size, 1)
        step = next((step for step in _STEPS if step >= wanted), _STEPS[-1])
        first = step - 1  # every 5th turn: 5, 10, 15, which are at 4, 9, 14
        values = [x for x in range(first, len(self._labels), step) if minVal <= x <= maxVal]
        return [(step, list(map(float, values)))]

    @while_painting(list)
    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [self._labels[round(value)] for value in values]
