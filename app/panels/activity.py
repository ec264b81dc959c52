"""The line above the composer that says what takes long, and how far it is."""

from __future__ import annotations

import time

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app.state.app_state import AppState
from app.state.outlook import spoken_seconds
from app.state.progress import Prefill
from app.widgets.banner import Banner


class ActivityPanel(Banner):
    """Shows one thing at a time: a copy being saved, the model being loaded, the prompt being read, the wait for it."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__("Activity", parent)
        self._state = state
        self.activated.connect(state.model.cancel)
        for signal in (state.shown.conversation_changed, state.shown.phase_changed, state.model.changed):
            signal.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        conversation, loading = self._state.conversation, self._state.model.loading
        waits = " Your message waits for it." if conversation.phase == "waiting" else ""
        if conversation.saving_to is not None:
            self.show_text(f"Saving a copy as {conversation.saving_to.name}…")
            self.set_progress(0, 0)
        elif loading is not None:
            self.show_text(f"Loading {loading.path.name}.{waits}", button="Cancel")
            self.set_progress(loading.done, loading.total)
        elif conversation.phase == "waiting":
            self.show_text("Your message is saved and waits for the model.")
            self.set_progress(0, 0)
        elif conversation.phase == "prefill" and conversation.prefill is not None:
            self.show_text(prefill_text(conversation.prefill))
            prefill = conversation.prefill
            self.set_progress(prefill.done - prefill.cache_n, max(1, prefill.total - prefill.cache_n))
        else:
            self.show_text("")


def prefill_text(prefill: Prefill) -> str:
    """Return how far reading the prompt is, and how long it will take."""
    text = f"Reading: {prefill.done:,} of {prefill.total:,} tokens, {prefill.cache_n:,} reused"
    seconds = prefill.seconds_left(time.monotonic())
    return text if not seconds else f"{text}, about {spoken_seconds(seconds)} left"
