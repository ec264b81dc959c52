"""The status line: what the engine is doing, the model, the context, the speed."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QLabel, QSizePolicy, QStatusBar, QWidget

from app.panels.activity import prefill_text
from app.state.app_state import AppState


class StatusPanel(QStatusBar):
    """Follows the model and the current conversation."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._doing, self._model = QLabel(self), QLabel(self)
        self._context, self._speed = QLabel(self), QLabel(self)
        self._doing.setContentsMargins(8, 0, 0, 0)
        self._doing.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.addWidget(self._doing, 1)
        for label in (self._speed, self._context, self._model):
            label.setContentsMargins(8, 0, 8, 0)
            label.setMinimumWidth(1)
            self.addPermanentWidget(label)
        self.setSizeGripEnabled(False)
        shown = state.shown
        for signal in (shown.conversation_changed, shown.transcript_changed, shown.phase_changed, state.model.changed):
            signal.connect(self._update)
        shown.reply_grew.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        conversation, model = self._state.conversation, self._state.model.model
        speed = conversation.tokens_per_second
        used = f"{conversation.n_tokens:,}"
        for label, name, text in (
            (self._doing, "Activity", self._doing_text()),
            (self._speed, "Speed", f"{speed:.1f} tok/s" if speed else ""),
            (self._context, "Context", f"{used} / {model.n_ctx:,} tokens" if model else ""),
            (self._model, "Model", f"{model.path.stem} · {model.kernels}" if model else "No model"),
        ):
            label.setText(text)
            label.setVisible(bool(text))
            label.setAccessibleName(f"{name}: {text}")
        for label in (self._doing, self._model):
            label.setToolTip(self._state.model.kernels_note)

    def _doing_text(self) -> str:
        conversation, loading = self._state.conversation, self._state.model.loading
        if conversation.phase == "prefill" and conversation.prefill is not None:
            return prefill_text(conversation.prefill)
        if conversation.phase == "decode":
            return "Writing"
        if loading is not None and loading.is_compiling:
            return "Compiling the kernels for this processor, once"
        if loading is not None:
            return f"Loading the model: {100 * loading.done // loading.total if loading.total else 0} %"
        if conversation.phase == "opening":
            return "Opening"
        return "Waiting" if conversation.phase == "waiting" else self._state.model.kernels_note or "Ready"
