"""What is wished: each wish of the person becomes a job of the session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Slot

from app.library import Library
from app.opening_mark import OpeningMark
from app.settings import Settings
from app.state.choices import Choices
from app.state.conversation_state import ConversationState
from app.state.library_files import LibraryFiles
from app.state.model_state import ModelState
from app.state.notice import Action
from app.state.open_conversations import OpenConversations
from app.state.reports import Reports
from app.state.shown import Shown
from engine.jobs import Job
from engine.session import Session

MODEL_SUFFIX = ".gguf"
_SETTLING_MS = 3000  # until what was opened is painted, and has ended no process


class Wishes(QObject):
    """Turns wishes into jobs. What comes of them is the events' to tell: see `AppState`."""

    def __init__(self, settings: Settings, library: Library, session: Session, parent: QObject | None) -> None:
        super().__init__(parent)
        self.settings = settings
        self.library = library
        self.reports = Reports(self)
        self.shown = Shown(self)
        self.files = LibraryFiles(library, self.reports, self)
        self.files.copied.connect(self.open_conversation)
        self.model = ModelState(session, self)
        self._session = session
        self._choices = Choices(settings, self.reports)
        self._open = OpenConversations(session, self)
        self._to_open: Path | None = None  # once it is closed
        self._waking: Job | None = None
        self._mark = OpeningMark()
        self._settling = QTimer(self, singleShot=True, interval=_SETTLING_MS)
        self._settling.timeout.connect(self._settle)
        self._is_closed = False

    @property
    def conversation(self) -> ConversationState:
        """The conversation that is shown."""
        return self.shown.conversation

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
            self._mark.begin("model", path.absolute())
            self.model.load(path.absolute(), self._choices.engine_settings())

    def new_conversation(self) -> None:
        """Show an empty conversation; it becomes a file in the library with its first message."""
        if self.conversation.phase != "new":
            self._mark.end("conversation")
            self._show(ConversationState(self))

    @Slot(object)
    def open_conversation(self, path: Path) -> None:
        """Show the conversation of a slot file; from a read-only place, a copy of it in the library."""
        path = path.absolute()
        if path == self.conversation.path or self._is_closed:
            return
        if not os.path.isfile(path):
            self.reports.tell(f"There is no file {path}.")
        elif not all(os.access(place, os.W_OK) for place in (path, path.parent)):
            self.files.copy(path)
        elif (known := self._open.of_file(path)) is None:
            conversation = ConversationState(self)
            self._begin_opening(path)
            self._open.open(conversation, path)
            self._show(conversation)
        else:
            known.to_remove = None  # whoever wants to see it again wants it to stay
            if self._open.take_up(known):
                self._mark.end("conversation")
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

    def left_out(self, paths: Iterable[Path]) -> set[Path]:
        """Return those files of a start that the one before it did not survive, and tell of them.

        They are not opened by themselves again; the person may.
        """
        found = {kind: path for kind, path in self._mark.left.items() if path in map(Path.absolute, paths)}
        for kind, path in found.items():
            self._choices.forget_last(kind)
            if kind == "model":
                text = f"Dormouse came to a sudden end while it loaded {path}, so no model was loaded this time."
                self.reports.tell(text, Action("Load It All the Same", partial(self.load_model, path)))
            else:
                text = f"Dormouse came to a sudden end while it opened {path}, so it is not open this time."
                self.reports.tell(text, Action("Open It All the Same", partial(self.open_conversation, path)))
        self._mark.clear()
        return set(found.values())

    def require_model(self) -> bool:
        """Tell whether messages can be answered; if not, say so to the person as well."""
        if not self.model.is_ready_or_loading:
            self.reports.no_model()
        return self.model.is_ready_or_loading

    def send(self, text: str) -> None:
        """Send a message; it waits its turn if the model or the conversation is still loading."""
        conversation = self.conversation
        id = conversation.id
        if id is None:
            id = self._open.open(conversation, self.library.new_path())
        system = self.settings.system_prompt if not conversation.transcript.messages else None
        job = self._session.send(id, text, system=system or None, settings=self._choices.turn_settings())
        conversation.begin_turn(job, text)

    def regenerate(self) -> None:
        """Answer the last user message again, as another version."""
        if (id := self.conversation.idle_id) is not None and self.require_model():
            self.conversation.begin_turn(self._session.regenerate(id, settings=self._choices.turn_settings()))

    def edit(self, message: int, text: str) -> None:
        """Replace a user message by another version, as a branch, and answer that."""
        if (id := self.conversation.idle_id) is not None:
            job = self._session.edit(id, message, text, settings=self._choices.turn_settings())
            self.conversation.begin_turn(job, text)

    def select(self, message: int) -> None:
        """Go to the newest branch through a message."""
        if (id := self.conversation.idle_id) is not None:
            self._session.select(id, message)

    @Slot()
    def stop(self) -> None:
        """End the turn in progress; what was said stays."""
        self.conversation.stop()

    @Slot(object)
    def change_settings(self, values: Mapping[str, Any]) -> None:
        """Take and save what the person set; offer to load the model again if it runs otherwise then."""
        if self._choices.change(values) and self.model.path is not None:
            action = Action("Load Again", self._load_again)
            self.reports.inform("What you set applies when the model is loaded again.", action)

    def _load_again(self) -> None:
        if self.model.path is not None:
            self.load_model(self.model.path)

    def _show(self, conversation: ConversationState) -> None:
        before, self._to_open = self.shown.show(conversation), None
        if self._waking is not None:  # nobody waits for it any more
            self._waking.cancel()
            self._waking = None
        self._open.release(before)
        self._choices.remember(None)
        self._choices.remember(conversation.path)
        self.shown.conversation_changed.emit()

    def _remove(self, path: Path) -> None:
        self._choices.forget(path)
        self.files.remove(path)
        self._session.forget(path)

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
            if conversation.path is not None:
                self._begin_opening(conversation.path)
            self._waking = self._session.wake(id)

    def _begin_opening(self, path: Path) -> None:
        self._mark.begin("conversation", path)
        self._settling.start()

    @Slot()
    def _settle(self) -> None:
        """Take the conversation for harmless once it is open, awake and painted."""
        if self.conversation.phase == "opening" or self._waking is not None:
            self._settling.start()
        else:
            self._mark.end("conversation")
