"""What the prefill plot shows of a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TurnBar:
    """A turn: tokens reused and evaluated, the time that took, where the reused ones came from, and why not more.

    `label` stands below the bar; `tooltip` is the receipt in words.
    """

    label: str
    cache_n: int
    prompt_n: int
    prompt_ms: float
    source: Literal["cold", "live", "restored"]
    reason: str
    tooltip: str

    @property
    def total(self) -> int:
        """Tokens of the prompt."""
        return self.cache_n + self.prompt_n

    @property
    def duration(self) -> str:
        """The time of the prefill, short enough to stand above a bar."""
        if self.prompt_ms < 1000:
            return f"{self.prompt_ms:.0f} ms"
        seconds = self.prompt_ms / 1000
        return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
