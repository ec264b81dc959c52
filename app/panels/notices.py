"""What the window tells in passing."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app.state.app_state import AppState
from app.state.notice import Notice
from app.widgets.notice_bar import NoticeBar, NoticeStack


class NoticesPanel(NoticeStack):
    """Shows the state's notices until they are closed."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        state.reports.noticed.connect(self._show)

    @Slot(object)
    def _show(self, notice: Notice) -> None:
        bar = NoticeBar(notice.text, notice.kind, self)
        if notice.action is not None:
            bar.set_action(notice.action.label, notice.action.run)
        self.add(bar)
