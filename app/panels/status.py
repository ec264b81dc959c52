"""The status line: what the engine is doing, the model, the context, the speed."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QSizePolicy, QStatusBar, QWidget

from app.panels.activity import prefill_text
from app.state.app_state import AppState
from app.widgets.controls import label
from app.widgets.foreign_words import tool_tip, without_middle

_LONGEST_NAME = 40


class StatusPanel(QStatusBar):
    """Follows the model and the current conversation."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._doing, self._model = label("", self), label("", self)
        self._context, self._speed = label("", self), label("", self)
        self._doing.setContentsMargins(8, 0, 0, 0)
        self._doing.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.addWidget(self._doing, 1)
        for shown in (self._speed, self._context, self._model):
            shown.setContentsMargins(8, 0, 8, 0)
            shown.setMinimumWidth(1)
            self.addPermanentWidget(shown)
        self.setSizeGripEnabled(False)
        for signal in (
            state.shown.conversation_changed,
            state.shown.transcript_changed,
            state.shown.phase_changed,
            state.shown.reply_grew,
            state.model.changed,
        ):
            signal.connect(self._update)
        self._update()

    @Slot()
    def _update(self) -> None:
        conversation, model = self._state.conversation, self._state.model.model
        speed = conversation.tokens_per_second
        used = f"{conversation.n_tokens:,}"
        name = f"{without_middle(model.path.stem, _LONGEST_NAME)} · {model.kernels}" if model else "No model"
        for shown, what, text in (
            (self._doing, "Activity", self._doing_text()),
            (self._speed, "Speed", f"{speed:.1f} tok/s" if speed else ""),
            (self._context, "Context", f"{used} / {model.n_ctx:,} tokens" if model else ""),
            (self._model, "Model", name),
        ):
            shown.setText(text)
            shown.setVisible(bool(text))
            shown.setAccessibleName(f"{what}: {text}")
        for shown in (self._doing, self._model):
            shown.setToolTip(tool_tip(self._state.model.kernels_note))

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
