"""What the window tells its user in passing: one sentence, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Action:
    """A next step: the text of its button, and what the button does."""

    label: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Notice:
    """One sentence for the bar in the window."""

    text: str
    kind: Literal["error", "information"] = "error"
    action: Action | None = None
