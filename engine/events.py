"""What the engine tells: frozen events, each naming the job that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.slot.records import Message, ModelIdentity, Reason, Receipt, Source
from engine.slot.transcript import Transcript


@dataclass(frozen=True)
class Event:
    """Something that happened to a job; `conversation` is None for jobs that concern none."""

    job: int
    conversation: int | None


@dataclass(frozen=True)
class Outcome(Event):
    """The last event of a job."""


@dataclass(frozen=True)
class ModelLoading(Event):
    """Bytes of the model file that are loaded, of all."""

    done: int
    total: int


@dataclass(frozen=True)
class KernelsCompiling(Event):
    """Part of the kernels is compiled for this processor, which happens on the first start only."""

    part: str


@dataclass(frozen=True)
class ModelLoaded(Outcome):
    """A model is ready; the one before is gone."""

    path: Path
    name: str
    architecture: str
    fingerprint: str
    kernels: str
    kernels_note: str | None  # why faster ones do not compute, or these begin late
    n_threads: int
    n_ctx: int
    template_is_fallback: bool  # the model has no chat template: a plain one is used
    load_ms: float


@dataclass(frozen=True)
class Opened(Outcome):
    """A conversation is open and can be read; `damage` says what of it is lost."""

    path: Path | None  # None for a temporary one
    transcript: Transcript
    receipts: tuple[Receipt, ...]
    models: tuple[ModelIdentity, ...]  # that answered in it, or whose state it holds
    damage: tuple[str, ...]
    is_repairable: bool = False  # it can't be written as it is, but `Session.repair` can heal it


@dataclass(frozen=True)
class Woken(Outcome):
    """The stored state of the current branch is awake: what the next turn will find, and what it will cost."""

    cache_n: int  # tokens that need not be read again
    prompt_n: int  # tokens that must, beside those of the next message
    source: Source
    reason: Reason
    models: tuple[ModelIdentity, ...]  # that answered in it, or whose state it holds


@dataclass(frozen=True)
class TurnSaved(Event):
    """The user's words are on disk (no user message where a reply is written anew) and the turn waits its turn."""

    transcript: Transcript
    reply: Message


@dataclass(frozen=True)
class PrefillStarted(Event):
    """What of the prompt is known and what must be read, before it is read."""

    cache_n: int  # tokens reused
    prompt_n: int  # tokens to evaluate
    source: Source
    reason: Reason


@dataclass(frozen=True)
class PrefillProgress(Event):
    """Tokens of the prompt that were reused, that are done including these, and that there are."""

    cache_n: int
    done: int
    total: int


@dataclass(frozen=True)
class TokenGenerated(Event):
    """One more token of a reply; `text` is empty while a character is incomplete."""

    message: int
    token_id: int
    text: str


@dataclass(frozen=True)
class TurnFinished(Outcome):
    """A reply is complete and saved. Cancelled ones are complete as well: what was said stays.

    The receipt of a turn that was cancelled while it waited names no tokens, no model and no kernels.
    """

    reply: Message
    token_ids: tuple[int, ...]  # of the content: without the token that ended it
    receipt: Receipt
    logits_xxh3: str | None  # of the logits that chose the first token; None when there is no token


@dataclass(frozen=True)
class Selected(Outcome):
    """Another branch of the conversation is current."""

    transcript: Transcript


@dataclass(frozen=True)
class SavedAs(Outcome):
    """The conversation lives in another file from now on; the one before stays as it is."""

    path: Path


@dataclass(frozen=True)
class Closed(Outcome):
    """A conversation is closed and everything of it is written."""


@dataclass(frozen=True)
class Cancelled(Outcome):
    """A job that is no turn was cancelled before it began: all is as it was."""


@dataclass(frozen=True)
class LoadCancelled(Cancelled):
    """Loading a model was cancelled; the one before is still there."""


@dataclass(frozen=True)
class Warned(Event):
    """Something went wrong that does not end the job, in one sentence."""

    text: str


@dataclass(frozen=True)
class Failed(Outcome):
    """A job ended without its result, for a reason in one sentence.

    `details` is empty for what the user can mend, a traceback for what only a programmer can.
    """

    text: str
    details: str = ""


@dataclass(frozen=True)
class Refused(Failed):
    """A message does not fit into the context, and is no part of the conversation.

    Where it was stored before that was known, `words` is its text, and `transcript` what there is without it.
    """

    words: str = ""
    transcript: Transcript | None = None
