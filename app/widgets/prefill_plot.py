"""The prefill plot: what each turn of a conversation had to read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QFont, QPalette, QShowEvent
from PySide6.QtWidgets import QStackedLayout, QVBoxLayout, QWidget

from app.widgets.colors import mixed
from app.widgets.controls import markup_label
from app.widgets.turn_bar import TurnBar

if TYPE_CHECKING:
    from app.widgets.turn_plot import TurnPlot

__all__ = ["PrefillPlot", "TurnBar"]

_EMPTY = "<p><b>Nothing read yet</b></p><p>Each reply shows here how much of the conversation was read again.</p>"


class PrefillPlot(QWidget):
    """One bar per turn: tokens reused and tokens evaluated, with the time of the prefill and where the state was.

    The chart is made when there are turns to see for the first time, and drawn again only while it can be seen.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Prefill plot")
        self._turns: tuple[TurnBar, ...] = ()
        self._plot: TurnPlot | None = None
        self._update = QTimer(self, singleShot=True, interval=0)
        self._update.timeout.connect(self._show_turns)

        self._empty = markup_label(_EMPTY, self)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setMargin(24)
        self._legend = markup_label("", self)
        self._legend.setContentsMargins(8, 8, 8, 0)
        self._chart = QWidget(self)
        self._column = QVBoxLayout(self._chart)
        self._column.setContentsMargins(0, 0, 8, 0)
        self._column.setSpacing(4)
        self._column.addWidget(self._legend)
        self._pages = QStackedLayout(self)
        self._pages.addWidget(self._empty)
        self._pages.addWidget(self._chart)
        self._apply_style()

    @property
    def plot(self) -> TurnPlot | None:
        """The chart, None as long as nothing was shown."""
        return self._plot

    def sizeHint(self) -> QSize:
        return QSize(320, 240)

    def minimumSizeHint(self) -> QSize:
        return QSize(200, 160)

    def set_turns(self, turns: Sequence[TurnBar]) -> None:
        """Show the turns of a conversation, the oldest first."""
        self._turns = tuple(turns)
        last = f"; the last one: {self._turns[-1].tooltip}" if self._turns else ""
        self.setAccessibleDescription(f"{len(self._turns)} turns{last}")
        if self.isVisible():
            self._update.start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._update.start()  # not at once: the window appears before pyqtgraph is imported

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange):
            self._apply_style()

    def _apply_style(self) -> None:
        palette, font = self.palette(), QFont(self.font())
        font.setPointSizeF(0.85 * font.pointSizeF())
        quiet = self._empty.palette()
        quiet.setColor(QPalette.ColorRole.WindowText, mixed(palette, 0.7))
        for label in (self._empty, self._legend):
            label.setPalette(quiet)
        self._legend.setFont(font)
        evaluated, reused = palette.color(QPalette.ColorRole.Highlight).name(), mixed(palette, 0.3).name()
        self._legend.setText(
            f"<span style='color:{evaluated}'>■</span>&nbsp;read &nbsp; "
            f"<span style='color:{reused}'>■</span>&nbsp;reused &nbsp; "
            "△&nbsp;cold &nbsp; ○&nbsp;live &nbsp; ◆&nbsp;restored"
        )
        if self._plot is not None:
            self._plot.set_style(palette, font)

    @Slot()
    def _show_turns(self) -> None:
        if not self.isVisible():
            return
        if not self._turns:
            self._pages.setCurrentWidget(self._empty)
            return
        if self._plot is None:
            from app.widgets.turn_plot import TurnPlot  # noqa: PLC0415

            self._plot = TurnPlot(self._chart)
            self._column.addWidget(self._plot, stretch=1)
            self._apply_style()
        self._plot.set_turns(self._turns)
        self._pages.setCurrentWidget(self._chart)
