"""The random walks with files that come back from a stranger in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis.stateful import initialize, precondition, rule

from engine.slot.records import CheckpointPayload
from tests.models.tiny import N_VOCAB
from tests.strangers import change_payloads, forge_marks, forget_marks, substitute
from tests.walk import PICK, Open, Walk

_SENT_AWAY = 0.5  # how often a file is, after a turn
MANNERS = ["nothing", "no marks", "other marks", "another text", "another text, no marks", "NaN"]


class ReceivedWalk(Walk):
    """Whatever a stranger did to the state in a file, what is in memory stays the truth."""

    def teardown(self) -> None:
        # of what was put aside the person is told
        self._errors = [error for error in self._errors if "was put aside" not in str(error)]
        super().teardown()

    @initialize(seed=PICK)
    def meet(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    @rule(which=PICK)
    def receive(self, which: int) -> None:
        self.reopen(which, wake=True)

    @precondition(lambda self: self._closed)
    @rule(which=PICK)
    def receive_donor(self, which: int) -> None:
        """Have a file changed that others may take a beginning from."""
        self._tamper(sorted(self._closed)[which % len(self._closed)])

    def _turn(self, one: Open, *arguments: Any, **named: Any) -> None:
        super()._turn(one, *arguments, **named)
        if one.path is not None and self._random.random() < _SENT_AWAY:
            one.conversation.close()
            self._go_on_with(one, one.path, wake=True)

    def _go_on_with(self, one: Open, path: Path, *, wake: bool) -> None:
        if path.exists():
            self._tamper(path)
        super()._go_on_with(one, path, wake=True)

    def _tamper(self, path: Path) -> None:
        manner = self._random.choice(MANNERS)
        if manner == "no marks":
            forget_marks(path)
        elif manner == "other marks":
            forge_marks(path)
        elif manner.startswith("another text"):
            substitute(path, self._runtimes, lambda token_ids: (token_ids + 1) % N_VOCAB)
            if manner.endswith("no marks"):
                forget_marks(path)
        elif manner == "NaN":
            change_payloads(path, rows=lambda _, data: _not_numbers(data), checkpoint=_not_a_number)


def _not_numbers(data: bytes) -> bytes:
    """Make the first values of rows NaN, in whichever K/V type they are."""
    return b"\xff" * 34 + data[34:]


def _not_a_number(payload: CheckpointPayload) -> CheckpointPayload:
    """Make a value of the states NaN, if there are any."""
    return replace(payload, states=b"\xff" * 4 + payload.states[4:]) if payload.states else payload
