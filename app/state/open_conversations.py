"""The conversations whose files are open: the one that is shown, and those that are not closed yet."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.state.conversation_state import ConversationState
from engine import events
from engine.jobs import Job
from engine.session import Session


class OpenConversations(QObject):
    """Opens and closes conversations; what nobody wants any more stays open until its turn is over."""

    closed = Signal(object)
    """The `ConversationState` whose file is closed, or could not be and is given up."""
    kept = Signal(object)
    """The `ConversationState` whose file was to be closed and can be taken up again."""

    def __init__(self, session: Session, parent: QObject) -> None:
        super().__init__(parent)
        self._session = session
        self._states: dict[int, ConversationState] = {}
        self._released: set[int] = set()
        self._closing: dict[int, Job] = {}

    @property
    def states(self) -> list[ConversationState]:
        """All of them."""
        return list(self._states.values())

    def open(self, conversation: ConversationState, path: Path) -> int:
        """Open a slot file, or create it, as `conversation`; return the session's id for it."""
        job = self._session.open(path)
        assert job.conversation is not None
        conversation.begin_opening(job, path)
        self._states[job.conversation] = conversation
        return job.conversation

    def of_file(self, path: Path) -> ConversationState | None:
        """Return the open conversation of a file."""
        return next((state for state in self._states.values() if state.path == path), None)

    def of_event(self, event: events.Event) -> ConversationState | None:
        """Return the conversation that an event concerns."""
        return self._states.get(event.conversation) if event.conversation is not None else None

    def release(self, conversation: ConversationState) -> None:
        """Close a conversation as soon as its turn is over."""
        if conversation.id is None:
            conversation.deleteLater()
        elif conversation.is_lost:
            self._session.close_conversation(conversation.id)
            self._forget(conversation)
            self.closed.emit(conversation)
        else:
            self._released.add(conversation.id)
            self.close_idle()

    def take_up(self, conversation: ConversationState) -> bool:
        """Keep a released conversation after all.

        False if its file is to be closed already: then either `closed` or `kept` follows.
        """
        assert conversation.id is not None
        if (closing := self._closing.get(conversation.id)) is not None:
            closing.cancel()
            return False
        self._released.discard(conversation.id)
        return True

    def close_idle(self) -> None:
        """Close the released conversations whose turn is over."""
        for id in self._released - self._closing.keys():
            if not self._states[id].is_busy:
                self._closing[id] = self._session.close_conversation(id)

    def handle(self, conversation: ConversationState, event: events.Event) -> None:
        """Let a conversation take its event, and see whether it can be closed."""
        conversation.handle(event)
        assert conversation.id is not None
        closing = self._closing.get(conversation.id)
        if closing is not None and event.job == closing.id and isinstance(event, events.Outcome):
            if isinstance(event, events.Cancelled):
                del self._closing[conversation.id]
                self.kept.emit(conversation)
                self.close_idle()  # unless somebody has taken it up
            else:
                self._forget(conversation)
                self.closed.emit(conversation)
        else:
            self.close_idle()

    def _forget(self, conversation: ConversationState) -> None:
        assert conversation.id is not None
        self._states.pop(conversation.id)
        self._released.discard(conversation.id)
        self._closing.pop(conversation.id, None)
        conversation.deleteLater()
