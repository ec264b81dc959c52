"""The conversation: its messages, the composer below them, and what stands there without a model."""

from __future__ import annotations

from PySide6.QtCore import QUrl, Signal, Slot
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QStackedWidget, QVBoxLayout, QWidget

from app.panels.activity import ActivityPanel
from app.panels.outlook import OutlookPanel
from app.panels.welcome import WelcomePanel
from app.state.app_state import AppState
from app.state.starter_state import StarterState
from app.widgets.centered import Centered
from app.widgets.composer import Composer, can_be_edited
from app.widgets.link_dialog import LinkDialog
from app.widgets.message_view import MessageView
from app.widgets.transcript_view import TranscriptView
from app.widgets.whole_text import WholeText
from engine.slot.records import Message

_NOTES = {
    "length": "The reply ended where the context, or its longest length, did.",
    "cancelled": "Stopped.",
    "failed": "The reply failed.",
    "interrupted": "The reply was interrupted.",
}


class ChatPanel(QWidget):
    """Shows the current conversation and passes on what is written."""

    page_changed = Signal()
    """`is_welcoming` is another."""

    def __init__(self, state: AppState, starter: StarterState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._editing: int | None = None
        self._messages: dict[int, Message] = {}  # of the path that is shown
        self._transcript = TranscriptView(self._view, self)
        self._welcome = WelcomePanel(starter, self)
        self._welcome.choose_requested.connect(state.reports.model_wanted)
        self._pages = QStackedWidget(self)
        self._pages.addWidget(self._transcript)
        self._pages.addWidget(self._welcome)
        self._pages.currentChanged.connect(self.page_changed)
        self.composer = Composer(self)
        self.setAutoFillBackground(True)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 12)
        column.setSpacing(8)
        column.addWidget(self._pages, 1)
        below = QVBoxLayout()
        below.setContentsMargins(0, 0, 0, 0)
        below.setSpacing(8)
        for widget in (OutlookPanel(state, self), ActivityPanel(state, self), self.composer):
            below.addWidget(widget)
        column.addWidget(Centered(below, self))
        self.composer.submitted.connect(self._submit)
        self.composer.stop_requested.connect(state.stop)
        self.composer.edit_cancelled.connect(self.stop_editing)
        state.shown.conversation_changed.connect(self._conversation_changed)
        state.shown.transcript_changed.connect(self._show_transcript)
        state.shown.reply_grew.connect(self._grow)
        state.shown.phase_changed.connect(self._update_phase)
        state.model.changed.connect(self._update_page)
        state.reports.returned.connect(self._take_back)
        self._conversation_changed()

    @property
    def transcript(self) -> TranscriptView:
        """The messages."""
        return self._transcript

    @property
    def is_welcoming(self) -> bool:
        """Whether the window stands without model and conversation."""
        return self._pages.currentWidget() is self._welcome

    @Slot()
    def edit_last(self) -> None:
        """Put the last message of the user's into the composer, to replace it."""
        if users := self._state.conversation.transcript.user_messages():
            self._edit(users[-1].id)

    @Slot()
    def stop_editing(self) -> None:
        """Leave the message that is being edited as it is."""
        if self._editing is not None:
            self._editing = None
            self.composer.end_editing()

    @Slot()
    def _conversation_changed(self) -> None:
        self._transcript.set_messages([])
        self._transcript.follow()
        self.stop_editing()
        self._show_transcript()
        self._update_phase()
        self.composer.editor.setFocus()

    @Slot()
    def _show_transcript(self) -> None:
        """Bring the messages in line with the current path, keeping what is there already."""
        path = [message for message in self._state.conversation.transcript.path() if message.role != "system"]
        self._messages = {message.id: message for message in path}
        self._transcript.set_messages(list(self._messages))
        for view in self._transcript.views:
            self._update_view(view)
        self._update_page()

    def _view(self, id: int) -> MessageView:
        message = self._messages[id]
        view = MessageView(id, message.role, message.text, self)
        view.edit_requested.connect(self._edit)
        view.regenerate_requested.connect(self._state.regenerate)
        view.version_requested.connect(self._select_version)
        view.link_activated.connect(self._show_link)
        view.whole_requested.connect(self._show_whole)
        self._update_view(view)
        return view

    def _update_view(self, view: MessageView) -> None:
        conversation, message = self._state.conversation, self._messages[view.id]
        is_last = view.id == next(reversed(self._messages))
        is_pending = message.finish_reason == "pending"
        if not is_pending:
            view.set_text(message.text)
        elif is_last and len(view.source) < len(conversation.reply_text):  # shown again in the middle of a turn
            view.grow(conversation.reply_text[len(view.source) :])
        versions = [version.id for version in conversation.transcript.versions(message.id)]
        view.set_versions(versions.index(message.id) + 1, len(versions))
        damaged = "This message is damaged." if message.damaged else ""
        view.set_note(damaged or _NOTES.get(message.finish_reason or "", ""))
        idle = not conversation.is_busy
        view.set_actions(
            can_copy=not is_pending,
            can_edit=idle and message.role == "user",
            can_regenerate=idle and is_last and message.role == "assistant",
        )

    @Slot(int, str)
    def _grow(self, message: int, text: str) -> None:
        if (view := self._transcript.view(message)) is not None:
            view.grow(text)

    @Slot()
    def _update_phase(self) -> None:
        self.composer.set_busy(self._state.conversation.is_busy)

    @Slot()
    def _update_page(self) -> None:
        model, is_empty = self._state.model, not self._state.conversation.transcript.messages
        welcomes = is_empty and not model.is_ready_or_loading
        self._pages.setCurrentWidget(self._welcome if welcomes else self._transcript)
        self.composer.setVisible(not welcomes)
        self._transcript.set_hint("A new conversation. It is saved as you write, and wakes where you left it.")

    @Slot(str)
    def _submit(self, text: str) -> None:
        if not self._state.require_model():
            return
        self._transcript.follow()
        if self._editing is None:
            self.composer.clear()
            self._state.send(text)
        else:
            editing = self._editing
            self.stop_editing()
            self._state.edit(editing, text)

    @Slot(str)
    def _take_back(self, text: str) -> None:
        written_since = self.composer.editor.toPlainText()
        self.composer.set_text(f"{text}\n\n{written_since}" if written_since else text)

    @Slot(int)
    def _edit(self, message: int) -> None:
        if self._state.conversation.is_busy:
            return
        text = self._state.conversation.transcript.messages[message].text
        if can_be_edited(text):
            self._editing = message
            self.composer.begin_editing(text)
        else:
            self._state.reports.tell("This message is too long to be edited here. It can be copied.")

    @Slot(int, int)
    def _select_version(self, message: int, step: int) -> None:
        versions = [version.id for version in self._state.conversation.transcript.versions(message)]
        self._state.select(versions[versions.index(message) + step])

    @Slot(QUrl)
    def _show_link(self, url: QUrl) -> None:
        LinkDialog(url, self).open()

    @Slot(str)
    def _show_whole(self, text: str) -> None:
        WholeText(text, self).show()
