"""The line above the composer that says what the next turn will cost, and offers the model that belongs here."""

from __future__ import annotations

import os
from pathlib import Path

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app.state.app_state import AppState
from app.state.outlook import outlook
from app.widgets.banner import Banner


class OutlookPanel(Banner):
    """Follows the current conversation and the model."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__("Outlook", parent)
        self._state = state
        self.activated.connect(self._load)
        shown = state.shown
        signals = (shown.conversation_changed, shown.transcript_changed, shown.outlook_changed, state.model.changed)
        for signal in signals:
            signal.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        model, conversation = self._state.model, self._state.conversation
        text = outlook(conversation)
        offered = model.to_offer(conversation.models)
        if offered is None or conversation.is_busy:
            button = "Load Model…" if self._no_model_for_messages() else ""
            self.show_text(text or ("No model is loaded." if button else ""), button=button)
            return
        is_there = os.path.isfile(offered.path)  # also where it can't be looked at: no
        if not text:
            text = f"This conversation was held with {Path(offered.path).stem}."
            text += " No model is loaded; it can be read." if model.model is None else ""
        if not is_there:
            text += f" Its file is not at {offered.path} any more."
        self.show_text(text, button=f"Load {Path(offered.path).stem}" if is_there else "Load Model…")

    def _no_model_for_messages(self) -> bool:
        return not self._state.model.is_ready_or_loading and bool(self._state.conversation.transcript.messages)

    @Slot()
    def _load(self) -> None:
        offered = self._state.model.to_offer(self._state.conversation.models)
        if offered is not None and os.path.isfile(offered.path):
            self._state.load_model(Path(offered.path))
        else:
            self._state.reports.model_wanted.emit()
