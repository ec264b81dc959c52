"""How far a turn is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.slot.records import Receipt


@dataclass(frozen=True)
class Prefill:
    """Tokens of a prompt: reused, done including these, and in all; times are of the monotonic clock."""

    cache_n: int
    done: int
    total: int
    started: float = field(default_factory=time.monotonic)

    def seconds_left(self, now: float) -> float | None:
        """Return the estimate after the speed so far; None before the first ubatch is done."""
        done = self.done - self.cache_n
        return (now - self.started) * (self.total - self.done) / done if done > 0 else None


@dataclass(frozen=True)
class Decode:
    """Tokens of a reply so far; times are of the monotonic clock."""

    n: int
    started: float

    def tokens_per_second(self, now: float) -> float | None:
        """Return the speed since the first token; None before the second."""
        return (self.n - 1) / (now - self.started) if self.n > 1 and now > self.started else None


def prefill_seconds(prompt_n: int, receipts: Iterable[Receipt]) -> float | None:
    """Return how long reading `prompt_n` tokens will take, after the receipts of this conversation; None if unknown."""
    read = [receipt for receipt in receipts if receipt.prompt_n > 0 and receipt.prompt_ms > 0]
    n = sum(receipt.prompt_n for receipt in read)
    return prompt_n * sum(receipt.prompt_ms for receipt in read) / n / 1000 if n else None
