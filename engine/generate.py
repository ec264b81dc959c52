"""One turn in the engine: prefill what is not known yet, then decode, as a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from engine.errors import ContextFullError
from engine.models import Model, TokenIds
from engine.sampling import Sampler
from engine.slot.next_tokens import logits_digest
from engine.slot.records import FinishReason
from engine.slot.reuse import Reason, Source
from engine.slot.slot import Slot


class Cancelled(Exception):
    """The job was cancelled; raised by `check` and caught where the turn ends."""


@dataclass(frozen=True)
class Prompt:
    """The ids of a rendered conversation, and where in them its messages end.

    `ends` are (position, message id) for all messages but the last, which ends with the prompt.
    """

    token_ids: TokenIds
    ends: tuple[tuple[int, int], ...]
    last_message: int


@dataclass(frozen=True)
class Reused:
    """The first step: n tokens of the prompt are known."""

    n: int
    source: Source
    reason: Reason


@dataclass(frozen=True)
class Prefilled:
    """The first `n` tokens of the prompt are known by now."""

    n: int


@dataclass(frozen=True)
class Sampled:
    """A token of the reply; `logits_xxh3` of the logits that chose it, given for the first one."""

    token_id: int
    logits_xxh3: str | None = None


@dataclass(frozen=True)
class Ended:
    """The last step."""

    finish_reason: FinishReason
    logits_xxh3: str | None = None  # given when no token came before


@dataclass(frozen=True)
class Limits:
    """What bounds a turn, all in tokens; `max_tokens` None for as many as fit."""

    n_ctx: int
    n_ubatch: int = 512
    max_tokens: int | None = None


def check_fits(prompt: Prompt, limits: Limits) -> None:
    """Raise ContextFullError unless the prompt and one token more fit into the context."""
    n = len(prompt.token_ids)
    if n >= limits.n_ctx:
        raise ContextFullError(
            f"The conversation is {n:,} tokens long with this message, and the context holds {limits.n_ctx:,}: "
            "shorten the message, go back to an earlier one, or set a larger context."
        )


def prefill(slot: Slot, prompt: Prompt, *, n_ubatch: int, check: Callable[[], None]) -> Iterator[Reused | Prefilled]:
    """Bring the slot to the end of the prompt, reusing what is known, with a checkpoint at the end of each message.

    `check` is called between layers and may raise Cancelled: what finished ubatches computed stays.
    """
    while True:
        reuse = slot.plan(prompt.token_ids)
        yield Reused(reuse.n, slot.source(reuse), reuse.reason)
        if slot.wake(reuse):
            slot.mark_live(reuse)
            break
    total = len(prompt.token_ids)
    ends = {position: message for position, message in prompt.ends if position > reuse.n}
    ends[total] = prompt.last_message
    position = reuse.n
    for end, message in sorted(ends.items()):
        while position < end:
            n = min(n_ubatch, end - position)
            slot.evaluate(prompt.token_ids[position : position + n], between_layers=check)
            position += n
            yield Prefilled(position)
        slot.checkpoint(message=message, reason="message_end")


def decode(
    model: Model,
    slot: Slot,
    sampler: Sampler,
    *,
    end_ids: frozenset[int],
    limits: Limits,
    check: Callable[[], None],
) -> Iterator[Sampled | Ended]:
    """Generate from where the slot stands, whose last hidden state is known."""
    n_tokens = 0
    while True:
        assert slot.hidden is not None
        logits = model.logits(slot.hidden)[0]
        digest = logits_digest(logits) if n_tokens == 0 else None
        token_id = sampler.sample(logits, slot.n_tokens)
        if token_id in end_ids:
            yield Ended("stop", digest)
            return
        n_tokens += 1
        yield Sampled(token_id, digest)
        if n_tokens == limits.max_tokens or slot.n_tokens + 1 >= limits.n_ctx:
            yield Ended("length")
            return
        check()
        slot.evaluate(np.array([token_id], np.int32), between_layers=check)
