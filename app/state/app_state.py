"""The application: its session, and whom the session's events concern."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Qt, Slot

from app.bridge import Bridge
from app.library import Library
from app.settings import Settings
from app.state.conversation_state import ConversationState
from app.state.wishes import Wishes
from engine import events
from engine.session import Session


class AppState(Wishes):
    """Takes wishes, and hands the events that come of them to what is shown and what reports them."""

    def __init__(self, settings: Settings, library: Library, parent: QObject | None = None) -> None:
        bridge = Bridge()
        session = Session(bridge.post, kernels=settings.kernels, n_threads=settings.n_threads, library=library.folder)
        super().__init__(settings, library, session, parent)
        bridge.setParent(self)
        # queued even from this thread: an event never comes in the middle of asking for the job it belongs to
        bridge.posted.connect(self._handle, Qt.ConnectionType.QueuedConnection)
        self.model.loaded.connect(self._model_loaded)
        self.model.failed.connect(self.reports.model_failed)
        self._open.closed.connect(self._closed)
        self._open.kept.connect(self._open_awaited)
        self.unsaved: list[str] = []

    def close(self) -> None:
        """Stop what runs, save everything, and end the session's thread; `unsaved` says what could not be saved.

        This takes as long as `Session.close` and `BackgroundWork.close` may take, and no longer.
        """
        self._is_closed = True
        self.files.close()
        self.unsaved += self._session.close()
        self._mark.clear()
        for conversation in self._open.states:
            self._remove_left(conversation)

    @Slot(object)
    def _handle(self, event: events.Event) -> None:
        if self._is_closed:
            return
        if event.conversation is None:
            self.model.handle(event)
            if self.model.loading is None:
                self._mark.end("model")
            return
        if (conversation := self._open.of_event(event)) is None:
            return
        if self._waking is not None and event.job == self._waking.id and isinstance(event, events.Outcome):
            self._waking = None
        was_turn = conversation.turn is not None and event.job == conversation.turn.id
        self._open.handle(conversation, event)
        match event:
            case events.Opened():
                self.reports.damage(event, partial(self._repair, conversation))
                self._wake(conversation)
            case events.Selected():
                self._wake(conversation)
            case events.SavedAs():
                self._remove_left(conversation)
            case events.Warned(text=text):
                self.reports.tell(text)
            case events.Failed():
                self._failed(conversation, event, was_turn=was_turn)
        if isinstance(event, events.Opened | events.TurnSaved | events.TurnFinished | events.SavedAs):
            self._file_changed(conversation)

    def _file_changed(self, conversation: ConversationState) -> None:
        self.files.note(conversation)
        if conversation is self.conversation and conversation.path is not None:
            self._choices.remember(conversation.path)

    def _failed(self, conversation: ConversationState, event: events.Failed, *, was_turn: bool) -> None:
        is_shown = conversation is self.conversation
        if was_turn:
            self.reports.turn_failed(conversation, event, self.regenerate if is_shown else None)
        else:
            self.reports.report(event.text, event.details)
        if conversation.is_lost and not conversation.is_busy and is_shown:
            self._show(ConversationState(self))

    @Slot(object)
    def _closed(self, conversation: ConversationState) -> None:
        self._remove_left(conversation)
        self._open_awaited(conversation)

    @Slot(object)
    def _open_awaited(self, conversation: ConversationState) -> None:
        """Open the file of a conversation again if the person waits for that."""
        if conversation.path is not None and conversation.path == self._to_open:
            self.open_conversation(conversation.path)

    def _remove_left(self, conversation: ConversationState) -> None:
        """Delete the file that a conversation has left, if that was wished."""
        left, conversation.to_remove = conversation.to_remove, None
        if left is not None:
            self._remove(left)

    @Slot()
    def _model_loaded(self) -> None:
        model = self.model.model
        assert model is not None
        self.settings.last_model = str(model.path)
        self.reports.model_loaded(model, self.model.kernels_note)
        self._wake(self.conversation)
