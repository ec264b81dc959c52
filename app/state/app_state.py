"""The application: its session, its model, the conversation that is shown, and what can be done with them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal, SignalInstance, Slot

from app.bridge import Bridge
from app.library import Library
from app.settings import Settings
from app.state.conversation_state import ConversationState
from app.state.copy_work import CopyWork
from app.state.model_state import ModelState
from app.state.notice import Action, Notice
from app.state.open_conversations import OpenConversations
from engine import events
from engine.errors import DormouseError
from engine.jobs import Job
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import Session, TurnSettings

MODEL_SUFFIX = ".gguf"


class AppState(QObject):
    """Turns wishes into jobs of the session, and hands its events to those whom they concern."""

    conversation_changed = Signal()
    """Another conversation is shown; the next four tell of the shown one as its own signals do."""
    transcript_changed = Signal()
    reply_grew = Signal(int, str)
    phase_changed = Signal()
    outlook_changed = Signal()
    library_changed = Signal()
    noticed = Signal(object)
    """A `Notice`."""
    model_wanted = Signal()
    """The person is to choose a model's file."""
    place_wanted = Signal()
    """The person is to choose where a copy of the conversation goes."""
    problem_found = Signal(str, str)
    """A sentence and a traceback."""
    returned = Signal(str)
    """The text of a message that could not be saved, for the composer."""

    def __init__(self, settings: Settings, library: Library, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.settings = settings
        self.library = library
        self._bridge = Bridge(self)
        # queued even from this thread: an event never comes in the middle of asking for the job it belongs to
        self._bridge.posted.connect(self._handle, Qt.ConnectionType.QueuedConnection)
        self._session = Session(
            self._bridge.post, kernels=settings.kernels, n_threads=settings.n_threads, library=library.folder
        )
        self.model = ModelState(self._session, self)
        self.model.loaded.connect(self._model_loaded)
        self.model.failed.connect(self._model_failed)
        self.conversation = ConversationState(self)
        self._follow(self.conversation)
        self._open = OpenConversations(self._session, self)
        self._open.closed.connect(self._closed)
        self._open.kept.connect(self._kept)
        self._to_open: Path | None = None  # once it is closed
        self._waking: Job | None = None
        self._is_closed = False
        self._copying: list[CopyWork] = []
        self.unsaved: list[str] = []

    def open_files(self, paths: Iterable[Path]) -> None:
        """Load the models and open the slot files among `paths`; of several the last is shown."""
        for path in paths:
            if path.suffix.lower() == MODEL_SUFFIX:
                self.load_model(path)
            else:
                self.open_conversation(path)

    @Slot(object)
    def load_model(self, path: Path) -> None:
        """Load a model in place of the present one."""
        if not self._is_closed:
            self.model.load(path.absolute(), self._engine_settings())

    def new_conversation(self) -> None:
        """Show an empty conversation; it becomes a file in the library with its first message."""
        if self.conversation.phase != "new":
            self._show(ConversationState(self))

    @Slot(object)
    def open_conversation(self, path: Path) -> None:
        """Show the conversation of a slot file; from a read-only place, a copy of it in the library."""
        path = path.absolute()
        if path == self.conversation.path or self._is_closed:
            return
        if not path.is_file():
            self.tell(f"There is no file {path}.")
        elif not all(os.access(place, os.W_OK) for place in (path, path.parent)):
            self._open_copy(path)
        elif (known := self._open.of_file(path)) is None:
            conversation = ConversationState(self)
            self._open.open(conversation, path)
            self._show(conversation)
        else:
            known.to_remove = None  # whoever wants to see it again wants it to stay
            if self._open.take_up(known):
                self._show(known)
                self._wake(known)
            else:
                self._to_open = path

    def save_as(self, path: Path) -> None:
        """Write a whole copy of the conversation and go on in it."""
        if self.conversation.id is not None:
            job = self._session.save_as(self.conversation.id, path.absolute())
            self.conversation.begin_saving(job, path.absolute())

    def remove_conversation(self, path: Path) -> None:
        """Delete a slot file, which is closed first."""
        known = self._open.of_file(path)
        if known is None:
            self._remove(path)
            return
        known.to_remove = path
        if path == self._to_open:
            self._to_open = None
        known.stop()
        if known is self.conversation:
            self.new_conversation()

    def close(self) -> None:
        """Stop what runs, save everything, and end the session's thread; `unsaved` says what could not be saved.

        This takes as long as `Session.close` and `BackgroundWork.close` may take, and no longer.
        """
        self._is_closed = True
        for copying in self._copying:
            copying.cancel()
        for copying in self._copying:
            copying.close()
        self.unsaved += self._session.close()
        for conversation in self._open.states:
            self._remove_left(conversation)

    def require_model(self) -> bool:
        """Tell whether messages can be answered; if not, say so to the person as well."""
        if not self.model.is_ready_or_loading:
            action = Action("Load Model…", self.model_wanted.emit)
            self.noticed.emit(Notice("No model is loaded, so nobody can answer.", action=action))
        return self.model.is_ready_or_loading

    def send(self, text: str) -> None:
        """Send a message; it waits its turn if the model or the conversation is still loading."""
        conversation = self.conversation
        id = conversation.id
        if id is None:
            id = self._open.open(conversation, self.library.new_path())
        system = self.settings.system_prompt if not conversation.transcript.messages else None
        job = self._session.send(id, text, system=system or None, settings=self._turn_settings())
        conversation.begin_turn(job, text)

    def regenerate(self) -> None:
        """Answer the last user message again, as another version."""
        if (id := self.conversation.idle_id) is not None and self.require_model():
            self.conversation.begin_turn(self._session.regenerate(id, settings=self._turn_settings()))

    def edit(self, message: int, text: str) -> None:
        """Replace a user message by another version, as a branch, and answer that."""
        if (id := self.conversation.idle_id) is not None:
            job = self._session.edit(id, message, text, settings=self._turn_settings())
            self.conversation.begin_turn(job, text)

    def select(self, message: int) -> None:
        """Go to the newest branch through a message."""
        if (id := self.conversation.idle_id) is not None:
            self._session.select(id, message)

    @Slot()
    def stop(self) -> None:
        """End the turn in progress; what was said stays."""
        self.conversation.stop()

    @Slot(str)
    def tell(self, text: str) -> None:
        """Tell an error."""
        self.noticed.emit(Notice(text))

    @Slot(str, str)
    def report(self, text: str, details: str, action: Action | None = None) -> None:
        """Tell what the person can mend, and report what only a programmer can, which has `details`."""
        if details:
            self.problem_found.emit(text, details)
        else:
            self.noticed.emit(Notice(text, action=action))

    @Slot(object)
    def change_settings(self, values: Mapping[str, Any]) -> None:
        """Take and save what the person set; offer to load the model again if it runs otherwise then."""
        before = self._engine_settings()
        for name, value in values.items():
            setattr(self.settings, name, value)
        self._save_settings()
        if self.model.is_ready_or_loading and self._engine_settings() != before:
            action = Action("Load Again", self._reload_model)
            self.noticed.emit(Notice("What you set applies when the model is loaded again.", "information", action))

    def _reload_model(self) -> None:
        if self.model.path is not None:
            self.load_model(self.model.path)

    def _engine_settings(self) -> EngineSettings:
        s = self.settings
        return EngineSettings(
            n_ctx=s.n_ctx,
            kv_type=s.kv_type,
            checkpoint_interval=s.checkpoint_interval,
            memory_budget=s.memory_budget << 20,
            disk_budget=s.disk_budget << 20,
        )

    def _turn_settings(self) -> TurnSettings:
        s = self.settings
        return TurnSettings(SamplingParameters(s.temperature, s.top_k, s.top_p), s.max_tokens)

    # --- conversations -----------------------------------------------------------------------------------------

    def _show(self, conversation: ConversationState) -> None:
        before, self.conversation, self._to_open = self.conversation, conversation, None
        for signal, forwarded in self._forwards(before):
            signal.disconnect(forwarded)
        self._follow(conversation)
        if self._waking is not None:  # nobody waits for it any more
            self._waking.cancel()
            self._waking = None
        self._open.release(before)
        self.settings.last_conversation = None
        self._remember()
        self.conversation_changed.emit()

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

    def _open_copy(self, path: Path) -> None:
        copying = CopyWork(path, self.library.new_path(), self)
        copying.succeeded.connect(self.open_conversation)
        copying.failed.connect(self.report)
        self._copying.append(copying)
        copying.start()
        text = f"{path.name} can't be changed where it is, so a copy of it is opened in your library."
        self.noticed.emit(Notice(text, "information"))

    def _remember(self) -> None:
        """Keep what is shown for the next start, also for one after a crash."""
        path = self.conversation.path
        if path is None or self.settings.last_conversation == str(path):
            return
        self.settings.last_conversation = str(path)
        self.settings.add_recent(str(path))
        self._save_settings()

    def _save_settings(self) -> None:
        try:
            self.settings.save()
        except DormouseError as error:
            self.tell(str(error))

    def _remove(self, path: Path) -> None:
        try:
            self.library.remove(path)
        except DormouseError as error:
            self.tell(str(error))
        self.settings.recent = [recent for recent in self.settings.recent if recent != str(path)]
        self.library_changed.emit()

    @Slot(object)
    def _closed(self, conversation: ConversationState) -> None:
        self._remove_left(conversation)
        if conversation.path is not None and conversation.path == self._to_open:
            self.open_conversation(conversation.path)

    @Slot(object)
    def _kept(self, conversation: ConversationState) -> None:
        if conversation.path is not None and conversation.path == self._to_open:
            self.open_conversation(conversation.path)

    def _remove_left(self, conversation: ConversationState) -> None:
        """Delete the file that a conversation has left, if that was wished."""
        left, conversation.to_remove = conversation.to_remove, None
        if left is not None:
            self._remove(left)

    def _repair(self, conversation: ConversationState) -> None:
        """Heal the file of a conversation; where another one is shown by now, open it, which offers that again."""
        id = conversation.idle_id
        if conversation is self.conversation and id is not None:
            self._session.repair(id)
        elif conversation.path is not None:
            self.open_conversation(conversation.path)

    def _wake(self, conversation: ConversationState) -> None:
        """Have the state of a conversation ready if it is shown; the others are left alone, or closed already."""
        id = conversation.idle_id
        if conversation is not self.conversation or id is None:
            return
        if self.model.model is not None and conversation.transcript.messages:
            self._waking = self._session.wake(id)

    # --- events ------------------------------------------------------------------------------------------------

    @Slot(object)
    def _handle(self, event: events.Event) -> None:
        if self._is_closed:
            return
        if event.conversation is None:
            self.model.handle(event)
            return
        if (conversation := self._open.of_event(event)) is None:
            return
        was_turn = conversation.turn is not None and event.job == conversation.turn.id
        self._open.handle(conversation, event)
        match event:
            case events.Opened():
                self._tell_damage(conversation, event)
                self._wake(conversation)
            case events.Selected():
                self._wake(conversation)
            case events.SavedAs():
                self._remove_left(conversation)
            case events.Warned(text=text):
                self.tell(text)
            case events.Failed():
                self._failed(conversation, event, was_turn=was_turn)
        if isinstance(event, events.Opened | events.TurnSaved | events.TurnFinished | events.SavedAs):
            self._file_changed(conversation)

    def _tell_damage(self, conversation: ConversationState, event: events.Opened) -> None:
        repair = Action("Repair", partial(self._repair, conversation)) if event.is_repairable else None
        for sentence in event.damage[:-1]:
            self.tell(sentence)
        for sentence in event.damage[-1:]:
            self.noticed.emit(Notice(sentence, action=repair))

    def _file_changed(self, conversation: ConversationState) -> None:
        users = conversation.transcript.user_messages()
        if users and conversation.path is not None:
            self._note_title(conversation.path, users[0].text)
        if conversation is self.conversation:
            self._remember()
        self.library_changed.emit()

    def _note_title(self, path: Path, title: str) -> None:
        try:
            self.library.note_title(path, title)
        except Exception as error:  # the turn goes on
            text = f"The title of a conversation could not be noted ({type(error).__name__}: {error})."
            self.problem_found.emit(text, "".join(traceback.format_exception(error)))

    def _failed(self, conversation: ConversationState, event: events.Failed, *, was_turn: bool) -> None:
        action = None
        if was_turn and conversation.unsaved:
            self.returned.emit(conversation.unsaved)
            has_place = isinstance(event, events.Refused) or not conversation.transcript.messages
            action = None if has_place else Action("Save As…", self.place_wanted.emit)
        elif was_turn and conversation is self.conversation:
            action = Action("Answer Again", self.regenerate)
        self.report(event.text, event.details, action)
        if conversation.is_lost and not conversation.is_busy and conversation is self.conversation:
            self._show(ConversationState(self))

    @Slot()
    def _model_loaded(self) -> None:
        model = self.model.model
        assert model is not None
        self.settings.last_model = str(model.path)
        if self.model.kernels_note:
            self.tell(self.model.kernels_note)
        if model.template_is_fallback:
            text = f"The model {model.name} has no chat template; a plain one (ChatML) is used."
            self.noticed.emit(Notice(text, "information"))
        self._wake(self.conversation)

    @Slot(object)
    def _model_failed(self, event: events.Failed) -> None:
        self.report(event.text, event.details, Action("Load Model…", self.model_wanted.emit))
