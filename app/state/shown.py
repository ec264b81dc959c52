"""What is shown: one conversation at a time."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, SignalInstance

from app.state.conversation_state import ConversationState


class Shown(QObject):
    """The conversation that is shown, and its signals, whichever it is."""

    conversation_changed = Signal()
    """Another conversation is shown; the others tell of the shown one as its own signals do."""
    transcript_changed = Signal()
    reply_grew = Signal(int, str)
    phase_changed = Signal()
    outlook_changed = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.conversation = ConversationState(self)
        self._follow(self.conversation)

    def show(self, conversation: ConversationState) -> ConversationState:
        """Follow another conversation; return the one before. `conversation_changed` is the caller's to emit."""
        before, self.conversation = self.conversation, conversation
        for signal, forwarded in self._forwards(before):
            signal.disconnect(forwarded)
        self._follow(conversation)
        return before

    def _follow(self, conversation: ConversationState) -> None:
        for signal, forwarded in self._forwards(conversation):
            signal.connect(forwarded)

    def _forwards(self, conversation: ConversationState) -> list[tuple[SignalInstance, SignalInstance]]:
        return [
            (conversation.transcript_changed, self.transcript_changed),
            (conversation.reply_grew, self.reply_grew),
            (conversation.phase_changed, self.phase_changed),
            (conversation.outlook_changed, self.outlook_changed),
        ]
