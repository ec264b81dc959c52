"""One turn from the pending reply to the finished one: the steps of `generate`, told and saved as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.arrays import TokenIds
from engine.conversation import Conversation, PendingTurn
from engine.errors import ContextFullError
from engine.generate import (
    Cancelled,
    Ended,
    Limits,
    Prefilled,
    Prompt,
    Reused,
    Sampled,
    check_fits,
    decode,
    prefill,
)
from engine.runtime import Runtime
from engine.sampling import Sampler
from engine.slot.records import FinishReason, Message, Reason, Receipt, Source
from engine.slot.slot import Slot
from engine.tokenizer.detokenizer import IncrementalDetokenizer

_NOTHING = Reused(0, "cold", "none")
_SAVE_SECONDS = 1.0  # how much of a reply a crash may cost


@dataclass(frozen=True)
class Started:
    """What of a prompt of `total` tokens is reused, before anything is evaluated."""

    cache_n: int
    total: int
    source: Source
    reason: Reason


@dataclass(frozen=True)
class Progress:
    """Tokens of the prompt that are reused, that are known by now, and that there are."""

    cache_n: int
    done: int
    total: int


@dataclass(frozen=True)
class Text:
    """One more token of the reply; `text` is empty while a character is incomplete."""

    token_id: int
    text: str


@dataclass(frozen=True)
class Result:
    """The reply as it was saved; see `events.TurnFinished`."""

    reply: Message
    token_ids: tuple[int, ...]
    receipt: Receipt
    logits_xxh3: str | None


Step = Started | Progress | Text | Result


@dataclass
class Turn:
    """A reply in the making.

    `check` may raise Cancelled, which ends the turn early but well: what there is of the reply is its text.
    """

    conversation: Conversation
    pending: PendingTurn
    runtime: Runtime
    sampler: Sampler
    limits: Limits
    check: Callable[[], None]
    borrow: Callable[[Slot, TokenIds], str | None]
    """Gives the slot what other conversations know of a prompt; returns the name of the one that gave."""

    _reused: Reused = _NOTHING
    _donor: str | None = None
    _n_known: int = 0  # tokens of the prompt that are in the memory
    _token_ids: list[int] = field(default_factory=list)
    _text: str = ""
    _finish_reason: FinishReason = "cancelled"
    _logits_xxh3: str | None = None
    _started: float = field(default_factory=time.perf_counter)
    _prefilled: float | None = None  # when the first logits were there

    def run(self) -> Iterator[Step]:
        """Answer the last message of the conversation; the last step is the result.

        An error leaves the reply marked as failed, with the text that there is; ContextFullError, and Cancelled where
        it comes before there is a prompt, leave it pending: nothing was evaluated.
        """
        try:
            prompt = self.conversation.prompt(self.pending, self.runtime, check=self.check)
            check_fits(len(prompt.token_ids), self.limits.n_ctx)
            slot = self.conversation.slot_for(self.runtime)
            try:
                self.check()
                slot = self._borrow(slot, prompt)
                yield from self._prefill(slot, prompt)
                yield from self._decode(slot)
            except Cancelled:
                self._finish_reason = "cancelled"
            ended = time.perf_counter()
            is_whole = self._finish_reason != "cancelled"
            slot.checkpoint(
                message=self.pending.reply.id if is_whole else None, reason="message_end" if is_whole else "cancelled"
            )
        except (ContextFullError, Cancelled):  # whoever began the turn takes it back
            raise
        except BaseException:
            self.conversation.finish(
                self.pending.reply, text=self._text, finish_reason="failed", token_ids=self._token_ids
            )
            raise
        yield self._finish(ended)

    def _borrow(self, slot: Slot, prompt: Prompt) -> Slot:
        """Let the slot have what other conversations know; return it, or where that failed one as it was before."""
        try:
            self._donor = self.borrow(slot, prompt.token_ids)
        except Exception as error:  # only what would have been saved is lost
            self.conversation.note("sharing", error)
            self.conversation.unload()
            return self.conversation.slot_for(self.runtime)
        return slot

    def _prefill(self, slot: Slot, prompt: Prompt) -> Iterator[Step]:
        for step in prefill(slot, prompt, limits=self.limits, check=self.check):
            match step:
                case Reused(n=n):
                    self._reused, self._n_known = step, n
                    yield Started(n, len(prompt.token_ids), step.source, step.reason)
                case Prefilled(n=n):
                    self._n_known = n
            yield Progress(self._reused.n, self._n_known, len(prompt.token_ids))

    def _decode(self, slot: Slot) -> Iterator[Step]:
        detokenizer = IncrementalDetokenizer(self.runtime.tokenizer, stop_texts=self.runtime.template.stop_texts)
        end_ids = self.runtime.tokenizer.vocabulary.special.end_of_generation
        saved = time.monotonic()
        for step in decode(
            self.runtime.model, slot, self.sampler, end_ids=end_ids, limits=self.limits, check=self.check
        ):
            self._prefilled = self._prefilled or time.perf_counter()
            self._logits_xxh3 = self._logits_xxh3 or step.logits_xxh3
            match step:
                case Sampled(token_id=token_id):
                    piece = detokenizer.push(token_id)
                    self._token_ids.append(token_id)
                    self._text += piece
                    yield Text(token_id, piece)
                    if detokenizer.stopped:
                        self._end_at_stop_text(detokenizer)
                        return
                    if time.monotonic() - saved > _SAVE_SECONDS:
                        self.conversation.save_partial(self.pending.reply, self._text)
                        saved = time.monotonic()
                case Ended(finish_reason=reason):
                    self._text += detokenizer.flush()
                    self._finish_reason = reason

    def _end_at_stop_text(self, detokenizer: IncrementalDetokenizer) -> None:
        """End the reply before a text that ends it; what belongs to that text is no part of it."""
        self._finish_reason = "stop"
        if detokenizer.n_kept is not None:
            self._token_ids = self._token_ids[: detokenizer.n_kept]
        else:  # a token held the end of the reply and the beginning of the text
            self._token_ids = self.runtime.tokenizer.encode(self._text, parse_special=False).tolist()

    def _finish(self, ended: float) -> Result:
        prefilled = self._prefilled or ended
        receipt = Receipt(
            message=self.pending.reply.id,
            model=self.conversation.model_id,
            prompt_n=self._n_known - self._reused.n,
            cache_n=self._reused.n,
            source=self._reused.source,
            reason=self._reused.reason,
            prompt_ms=1000 * (prefilled - self._started),
            predicted_n=len(self._token_ids),
            predicted_ms=1000 * (ended - prefilled),
            kernels=self.runtime.model.kernels.name,
            created=time.time(),
            donor=self._donor,
        )
        reply = self.conversation.finish(
            self.pending.reply,
            text=self._text,
            finish_reason=self._finish_reason,
            token_ids=self._token_ids,
            receipt=receipt,
        )
        return Result(reply, tuple(self._token_ids), receipt, self._logits_xxh3)
