"""One conversation: its transcript, the turn in progress, and what its turns cost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QObject, Signal

from app.state.progress import Decode, Prefill
from app.state.receipts import by_reply
from engine import events
from engine.jobs import Job
from engine.slot.records import FinishReason, Message, ModelIdentity, Receipt
from engine.slot.transcript import Transcript

Phase = Literal["new", "opening", "idle", "waiting", "prefill", "decode"]


class ConversationState(QObject):
    """Follows the events of one conversation; 'new' until there is something to save."""

    transcript_changed = Signal()
    reply_grew = Signal(int, str)
    """A message's id and the text that it grew by."""
    phase_changed = Signal()
    outlook_changed = Signal()
    """What the next turn will cost is known, or not any more: `woken`, `prefill_started`."""
    turn_finished = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.path: Path | None = None
        self.id: int | None = None
        self.phase: Phase = "new"
        self.transcript = Transcript((), None)
        self.receipts: dict[int, Receipt] = {}  # by the reply's id
        self.models: tuple[ModelIdentity, ...] = ()
        self.is_lost = False  # its file could not be opened
        self.reply_text = ""  # of the turn in progress
        self.turn: Job | None = None
        self.unsaved = ""  # the message of the newest turn, until it is on disk
        self.saving_to: Path | None = None
        self.to_remove: Path | None = None  # a file that is to be deleted once this conversation has left it
        self.prefill: Prefill | None = None
        self.decode: Decode | None = None
        self.woken: events.Woken | None = None
        self.prefill_started: events.PrefillStarted | None = None
        self._reply: int | None = None
        self._saving: Job | None = None
        self._opening: Job | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a turn waits or runs."""
        return self.turn is not None

    @property
    def idle_id(self) -> int | None:
        """The id in the session if a turn could begin: the file is open and no turn is in progress."""
        return None if self.is_busy else self.id

    @property
    def n_tokens(self) -> int:
        """Tokens in the context, as far as they were counted."""
        if self.prefill is not None:
            return self.prefill.total + (self.decode.n if self.decode else 0)
        costs = [self.receipts[m.id] for m in self.transcript.path() if m.id in self.receipts]
        return costs[-1].cache_n + costs[-1].prompt_n + costs[-1].predicted_n if costs else 0

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of the reply in progress, or of the last one of the branch."""
        if self.decode is not None:
            return self.decode.tokens_per_second(time.monotonic())
        costs = [self.receipts[m.id] for m in self.transcript.path() if m.id in self.receipts]
        if not costs or not costs[-1].predicted_ms:
            return None
        return 1000 * costs[-1].predicted_n / costs[-1].predicted_ms

    def begin_opening(self, job: Job, path: Path) -> None:
        """Follow the job that opens the file."""
        self._opening, self.id, self.path = job, job.conversation, path
        self._set_phase("opening")

    def begin_turn(self, job: Job, text: str = "") -> None:
        """Follow the job of a turn, with a new message or none; it waits until the model is free."""
        self.turn, self.unsaved = job, text
        self._set_phase("waiting")

    def stop(self) -> None:
        """End the turn in progress soon, at once if it waits; what was said stays."""
        if self.turn is not None:
            self.turn.cancel()

    def begin_saving(self, job: Job, path: Path) -> None:
        """Follow the job that writes a copy."""
        self._saving, self.saving_to = job, path
        self.phase_changed.emit()

    def handle(self, event: events.Event) -> None:
        """Take an event of this conversation; those of turns that are over are dropped."""
        match event:
            case events.Opened():
                self._open(event)
            case events.Selected(transcript=transcript):
                self.transcript = transcript
                self.transcript_changed.emit()
            case events.Woken():
                self.woken, self.models = event, event.models
                self.outlook_changed.emit()
            case events.SavedAs(path=path):
                self.path = path
                self._end_saving()
            case events.Failed(job=job) | events.Cancelled(job=job) if self._saving and job == self._saving.id:
                self._end_saving()
            case events.Failed(job=job) if self._opening is not None and job == self._opening.id:
                self.is_lost = True
            case _ if self.turn is not None and event.job == self.turn.id:
                self._handle_turn(event)

    def _end_saving(self) -> None:
        self._saving = self.saving_to = None
        self.phase_changed.emit()

    def _open(self, event: events.Opened) -> None:
        self.transcript, self.models = event.transcript, event.models
        self.receipts = by_reply(event.receipts)
        if self.phase == "opening":
            self._set_phase("idle")
        self.transcript_changed.emit()

    def _handle_turn(self, event: events.Event) -> None:
        match event:
            case events.TurnSaved(transcript=transcript, reply=reply):
                self.transcript, self._reply, self.reply_text, self.unsaved = transcript, reply.id, "", ""
                self.transcript_changed.emit()
            case events.PrefillStarted(cache_n=cache_n, prompt_n=prompt_n):
                self.prefill = Prefill(cache_n, cache_n, cache_n + prompt_n)
                self.woken, self.prefill_started = None, event
                self._set_phase("prefill")
                self.outlook_changed.emit()
            case events.PrefillProgress(done=done) if self.prefill is not None:
                self.prefill = replace(self.prefill, done=done)
                self.phase_changed.emit()
            case events.TokenGenerated():
                self._add_token(event)
            case events.TurnFinished(reply=reply, receipt=receipt):
                if receipt.cache_n or receipt.prompt_n:  # otherwise it never began, and says nothing of the context
                    self.receipts[reply.id] = receipt
                self._finish(reply)
            case events.Refused(words=words, transcript=transcript) if transcript is not None:
                self.transcript, self._reply, self.unsaved = transcript, None, words
                self._finish(None)
            case events.Failed():
                self._fail("failed")

    def _add_token(self, event: events.TokenGenerated) -> None:
        self.decode = Decode(self.decode.n + 1 if self.decode else 1, self._decode_started())
        if self.phase != "decode":
            self._set_phase("decode")
        if event.text:
            self.reply_text += event.text
            self.reply_grew.emit(event.message, event.text)

    def _decode_started(self) -> float:
        return self.decode.started if self.decode else time.monotonic()

    def _fail(self, reason: FinishReason) -> None:
        if self._reply is None:
            self._finish(None)
        else:
            pending = self.transcript.messages[self._reply]
            self._finish(replace(pending, text=self.reply_text, finish_reason=reason))

    def _finish(self, reply: Message | None) -> None:
        if reply is not None:
            messages = self.transcript.messages | {reply.id: reply}
            self.transcript = Transcript(messages.values(), self.transcript.leaf)
        self.turn = self._reply = self.prefill = self.decode = self.prefill_started = None
        self._set_phase("idle")
        self.outlook_changed.emit()
        self.transcript_changed.emit()
        self.turn_finished.emit()

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self.phase_changed.emit()
