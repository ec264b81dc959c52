"""The prefill plot: what each turn of the branch had to read."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from PySide6.QtCore import QTimer, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.state.app_state import AppState
from app.state.background_work import BackgroundWork
from app.state.conversation_state import ConversationState
from app.state.outlook import why
from app.widgets.prefill_plot import PrefillPlot, TurnBar
from engine.slot.records import Receipt


class PlotPanel(QWidget):
    """Shows the receipts of the current conversation's branch."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._plot = PrefillPlot(self)
        self._importing: BackgroundWork | None = None
        self._is_ready = False
        self._has_failed = False  # since the panel is shown
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._plot)
        self._updating = QTimer(self, singleShot=True, interval=0)  # in an event of its own: turns may be many
        self._updating.timeout.connect(self._update)
        state.shown.conversation_changed.connect(self._updating.start)
        state.shown.transcript_changed.connect(self._updating.start)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._has_failed = False
        self._update()

    def finish(self) -> None:
        """Wait for what runs beside."""
        if self._importing is not None:
            self._importing.close()

    @Slot()
    def _imported(self) -> None:
        self._is_ready = True
        self._update()

    @Slot(str, str)
    def _failed(self, text: str, details: str) -> None:
        self._importing, self._has_failed = None, True
        self._state.reports.report(text, details)

    @Slot()
    def _update(self) -> None:
        turns = turn_bars(self._state.conversation, self._state.library.title)
        if self._is_ready or not turns:
            self._plot.set_turns(turns)
        elif self._importing is None and self.isVisible() and not self._has_failed:
            self._importing = BackgroundWork(_import_chart, self)
            self._importing.succeeded.connect(self._imported)
            self._importing.failed.connect(self._failed)
            self._importing.start()


def _import_chart(*_: object) -> None:
    """Import what draws the chart: it takes half a second, and would hold up the window."""
    importlib.import_module("app.widgets.turn_plot")


def turn_bars(conversation: ConversationState, title: Callable[[str], str]) -> list[TurnBar]:
    """Return one bar for each reply of the branch that has a receipt, in order; `title` names other conversations."""
    receipts = [conversation.receipts.get(message.id) for message in conversation.transcript.path()]
    return [_bar(number, receipt, title) for number, receipt in enumerate(filter(None, receipts), 1)]


def _bar(number: int, receipt: Receipt, title: Callable[[str], str]) -> TurnBar:
    lines = [
        f"Turn {number}, {receipt.source}",
        f"{receipt.cache_n:,} tokens reused, {receipt.prompt_n:,} read in {receipt.prompt_ms / 1000:.2f} s",
    ]
    if receipt.donor is not None:
        lines.append(f"Begins as “{title(receipt.donor)}” does: what that has read was taken from there")
    if receipt.predicted_ms:
        speed = 1000 * receipt.predicted_n / receipt.predicted_ms
        lines.append(f"{receipt.predicted_n:,} written, {speed:.1f} tok/s, {receipt.kernels}")
    if reason := why(receipt.reason):
        lines.append(f"Not more was reused: {reason}")
    return TurnBar(
        label=str(number),
        cache_n=receipt.cache_n,
        prompt_n=receipt.prompt_n,
        prompt_ms=receipt.prompt_ms,
        source=receipt.source,
        reason=receipt.reason,
        tooltip="\n".join(lines),
    )
