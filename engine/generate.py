"""One turn in the engine: prefill what is not known yet, then decode, as a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.arrays import TokenIds
from engine.errors import ContextFullError
from engine.models import Model
from engine.sampling import Sampler
from engine.slot.next_tokens import logits_digest
from engine.slot.records import FinishReason, Reason, Source
from engine.slot.slot import Slot


class Cancelled(Exception):
    """The job was cancelled; raised by `check` and caught where the turn ends."""


@dataclass(frozen=True)
class MessageEnd:
    """Where a message ends; 'prompt_end' for a user message, which a reply follows."""

    position: int
    message: int
    reason: Literal["message_end", "prompt_end"]


@dataclass(frozen=True)
class Prompt:
    """The ids of a rendered conversation, and where in them its messages end, in ascending order."""

    token_ids: TokenIds
    ends: tuple[MessageEnd, ...]


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
    """What bounds a turn, all in tokens; `max_tokens` None for as many as fit.

    In long messages there are checkpoints `checkpoint_interval` tokens apart, or more.
    """

    n_ctx: int
    n_ubatch: int = 512
    max_tokens: int | None = None
    checkpoint_interval: int = 512


def check_fits(n_prompt: int, n_ctx: int, *, at_least: bool = False) -> None:
    """Raise ContextFullError unless a prompt of so many tokens, or `at_least` as many, and one more fit."""
    if n_prompt >= n_ctx:
        length = f"{'at least ' if at_least else ''}{n_prompt:,} tokens long"
        raise ContextFullError(
            f"The conversation is {length} with this message, and the context holds {n_ctx:,}: "
            "shorten the message, go back to an earlier one, or set a larger context."
        )


def prefill(slot: Slot, prompt: Prompt, *, limits: Limits, check: Callable[[], None]) -> Iterator[Reused | Prefilled]:
    """Bring the slot to the end of the prompt, reusing what is known, with a checkpoint at the end of each message.

    Long messages get some on the way as well, unless the memory can be cut back without. `check` is called between
    layers and may raise Cancelled: what finished ubatches computed stays.
    """
    while True:
        reuse = slot.plan(prompt.token_ids)
        yield Reused(reuse.n, slot.source(reuse), reuse.reason)
        if slot.wake(reuse, between_layers=check):
            slot.mark_live(reuse)
            break
    position = reuse.n
    for end in prompt.ends:
        stops = set() if slot.memory.rewindable else interval_stops(position, end.position, limits)
        while position < end.position:
            n = min(limits.n_ubatch, end.position - position)
            slot.evaluate(prompt.token_ids[position : position + n], between_layers=check)
            position += n
            if position in stops:
                slot.checkpoint(message=None, reason="interval")
            yield Prefilled(position)
        if position == end.position:
            slot.checkpoint(message=end.message, reason=end.reason)


def interval_stops(start: int, end: int, limits: Limits) -> set[int]:
    """Return where in a message there are checkpoints: fewer and fewer with the distance from its end.

    Only ends of ubatches are chosen, the last one among them, so that they cost no time. What is changed in a long
    message is mostly what stands behind a document, and what is added to it.
    """
    stops, distance = set(), 1
    while distance < end - start:
        stops.add(start + (end - distance - start) // limits.n_ubatch * limits.n_ubatch)
        distance = max(2 * distance, limits.checkpoint_interval)
    return stops - {start}


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
        if n_tokens % limits.checkpoint_interval == 0 and not slot.memory.rewindable:
            slot.checkpoint(message=None, reason="generation")
