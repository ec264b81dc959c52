"""What is reported: events as sentences, with the next step where there is one."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from PySide6.QtCore import QObject, Signal, Slot

from app.state.conversation_state import ConversationState
from app.state.notice import Action, Notice
from engine import events


class Reports(QObject):
    """Tells the person what can be mended, and a programmer what else went wrong."""

    noticed = Signal(object)
    """A `Notice`."""
    problem_found = Signal(str, str)
    """A sentence and a traceback."""
    returned = Signal(str)
    """The text of a message that could not be saved, for the composer."""
    model_wanted = Signal()
    """The person is to choose a model's file."""
    place_wanted = Signal()
    """The person is to choose where a copy of the conversation goes."""

    @Slot(str)
    def tell(self, text: str, action: Action | None = None) -> None:
        """Tell an error."""
        self.noticed.emit(Notice(text, action=action))

    def inform(self, text: str, action: Action | None = None) -> None:
        """Tell something that is no error."""
        self.noticed.emit(Notice(text, "information", action))

    @Slot(str, str)
    def report(self, text: str, details: str, action: Action | None = None) -> None:
        """Tell what the person can mend, and report what only a programmer can, which has `details`."""
        if details:
            self.problem_found.emit(text, details)
        else:
            self.tell(text, action)

    def unforeseen(self, text: str, error: Exception) -> None:
        """Report an exception that stops nothing; `text` is the beginning of a sentence."""
        details = "".join(traceback.format_exception(error))
        self.problem_found.emit(f"{text} ({type(error).__name__}: {error}).", details)

    def no_model(self) -> None:
        """Tell that messages can't be answered."""
        self.tell("No model is loaded, so nobody can answer.", self._choose_model())

    def model_loaded(self, model: events.ModelLoaded, kernels_note: str) -> None:
        """Tell what is worth knowing of a model that was loaded."""
        if kernels_note:
            self.tell(kernels_note)
        if model.template_is_fallback:
            self.inform(f"The model {model.name} has no chat template; a plain one (ChatML) is used.")

    @Slot(object)
    def model_failed(self, event: events.Failed) -> None:
        """Tell why a model could not be loaded."""
        self.report(event.text, event.details, self._choose_model())

    def damage(self, event: events.Opened, repair: Callable[[], object]) -> None:
        """Tell what of a conversation is lost, and offer to repair its file if that can be done."""
        for sentence in event.damage[:-1]:
            self.tell(sentence)
        for sentence in event.damage[-1:]:
            self.tell(sentence, Action("Repair", repair) if event.is_repairable else None)

    def turn_failed(
        self, conversation: ConversationState, event: events.Failed, answer_again: Callable[[], object] | None
    ) -> None:
        """Tell why a turn failed; a message that is not on disk is given back."""
        action = None
        if conversation.unsaved:
            self.returned.emit(conversation.unsaved)
            is_stuck = conversation.transcript.messages and not isinstance(event, events.Refused)
            action = Action("Save As…", self.place_wanted.emit) if is_stuck else None
        elif answer_again is not None:
            action = Action("Answer Again", answer_again)
        self.report(event.text, event.details, action)

    def _choose_model(self) -> Action:
        return Action("Load Model…", self.model_wanted.emit)
