"""A slot: one live conversation in the engine, its memory and its place in the tree of what the model saw.

The memory holds one path of the tree. Everything else sleeps in the archive: rows go there once, as they come
(of a sliding window: those that a checkpoint refers to), and come back when another path is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from engine.arrays import F32, TokenIds
from engine.memory import Memory
from engine.models import Model
from engine.slot import spot_check
from engine.slot.archive import OVER_BUDGET, Archive
from engine.slot.next_tokens import NextTokens
from engine.slot.pruning import prune
from engine.slot.reading import Reading, UnfitError
from engine.slot.records import MESSAGE_ENDS, CheckpointPayload, CheckpointReason, Reason, Source
from engine.slot.reuse import Live, Reuse, ReusePlanner
from engine.slot.segments import ROOT
from engine.slot.spot_check import ReceivedStateError, SpotCheck, UnprovenStateError

_LAST_WORDS = (128, spot_check.N_TOKENS)  # tokens before a checkpoint to which rows alone should suffice to return
_NO_LIMIT = 1 << 40  # tokens; no conversation has as many
_NEXT_TOKENS_BYTES = 1024  # at most, in a checkpoint
_SEGMENT_TOKENS = 64  # evaluated tokens that may wait until they become a segment


class Slot:
    """Evaluates tokens for one conversation, and knows where it can go on without evaluating again."""

    def __init__(
        self, model: Model, archive: Archive, *, kv_type: DTypeLike = np.float16, disk_budget: int | None = None
    ) -> None:
        """Begin with an empty memory; the archive is kept within `disk_budget` bytes."""
        self._model = model
        self._archive = archive
        self._kv_type = kv_type
        self._disk_budget = disk_budget
        self._memory = model.new_memory(kv_type)
        self._cursor = ROOT
        self._pending: list[int] = []  # evaluated since the last segment
        self._hidden: F32 | None = None
        self._is_own = True  # whether this installation computed all in the memory: what is stored of it is marked then
        self._loss: tuple[Reason, int] | None = None  # why less than so many tokens may be reused
        if disk_budget == 0:
            archive.keep_nothing()

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the memory."""
        return self._memory.n_tokens

    @property
    def memory(self) -> Memory:
        """What the model keeps of them."""
        return self._memory

    @property
    def state_nbytes(self) -> int:
        """Bytes that a restore of the present state reads."""
        n = self.n_tokens
        rows = sum(part.row_nbytes * (n - part.first_row(n)) for part in self._memory.parts)
        here = (c.nbytes for c in self._archive.checkpoints.values() if c.cursor == self._cursor)
        return rows + max(here, default=0)

    @property
    def hidden(self) -> F32 | None:
        """Final hidden state of the last token, shape (1, n_embd), where it is known."""
        return self._hidden

    def explain_loss(self, reason: Reason, n_seen: int) -> None:
        """Give the reason to state should the next turn reuse less than the `n_seen` tokens that were seen before."""
        self._loss = (reason, n_seen)

    def plan(self, prompt: TokenIds, donor: Archive | None = None) -> Reuse:
        """Return how much of `prompt` (ids) is known here, or in another conversation, without going there."""
        self._flush()
        archive = donor or self._archive
        planner = ReusePlanner(
            tree=archive.tree,
            checkpoints=list(archive.checkpoints.values()),
            needed_rows=lambda n: [(p.kind, p.first_row(n)) for p in self._memory.parts if p.row_nbytes],
            rewindable=self._memory.rewindable,
            stateless=all(part.row_nbytes for part in self._memory.parts),
        )
        if donor is not None:
            return planner.plan(prompt, Live(ROOT, 0, has_hidden=False))
        reuse = planner.plan(prompt, Live(self._cursor, self.n_tokens, self._hidden is not None))
        if self._loss and reuse.n < max(self._loss[1], min(reuse.n_common, len(prompt) - 1)):
            return replace(reuse, reason=self._loss[0])
        return reuse

    def source(self, reuse: Reuse) -> Source:
        """Return where the reused state comes from: `restored` if an earlier process computed any of it."""
        if not reuse.n:
            return "cold"
        asleep = any(run.segment.id in self._archive.asleep for run in self._archive.tree.path(reuse.cursor))
        return "restored" if asleep else "live"

    def wake(self, reuse: Reuse, *, between_layers: Callable[[], None] = lambda: None) -> bool:
        """Make the memory hold what `reuse` says: cut it back, or read from the archive.

        State that came from elsewhere is checked by computing some of it again; `between_layers` may raise to cancel
        that. Returns False when the archive turns out to be damaged there, or not to hold the state of its text. That
        place is put aside, to `plan` again; what was live is live still.
        """
        if self._rewind(reuse):
            return True
        try:
            self._restore(reuse, between_layers)
        except UnfitError as error:
            self._put_aside(reuse, error)
            return False
        return True

    def _put_aside(self, reuse: Reuse, error: UnfitError) -> None:
        """See to it that a place is not planned with again."""
        reason: Reason = "damaged"
        if isinstance(error, ReceivedStateError):
            reason = error.reason
            if self._loss is None or self._loss[0] != reason:  # once is enough
                self._archive.tell(str(error))
        if not isinstance(error, ReceivedStateError) and self._archive.repair():
            self._store_live_rows()
        else:  # whole, and yet not what it should be
            if not isinstance(error, UnprovenStateError):  # nor is what came with it
                self._archive.forget_received(reuse.cursor)
            self._archive.forget(reuse.cursor, reuse.checkpoint, [part.kind for part in self._memory.parts])
        self._loss = (reason, reuse.n)
        self._archive.log("put_aside", n_tokens=reuse.n, reason=reason)

    def log_sleep(self, reason: str) -> None:
        """Note in the log that the live state is let go of."""
        self._archive.log("sleep", n_tokens=self.n_tokens, nbytes=self._memory.nbytes, reason=reason)

    def adopt(self, donor: Archive, reuse: Reuse, *, name: str) -> bool:
        """Take a place of another conversation into this one, as `plan` found it there, and go there.

        It becomes a branch of its own from the root on: rows of the beginning that are known here were computed in
        other ubatches, and those behind them did not see their last bits. Returns False, and changes nothing, when the
        donor turns out to be damaged there, or to have anything that this installation did not compute.
        """
        reading = Reading(donor, own_only=True)
        try:
            self._memory, self._hidden = reading.memory(self._model, self._kv_type, reuse.cursor, reuse.checkpoint)
        except UnfitError:
            return False
        self._is_own = reading.is_own
        self._cursor = self._archive.add_segment(ROOT, donor.tree.token_ids(reuse.cursor))
        path = self._archive.tree.path(self._cursor)
        self._archive.asleep.add(path[-1].segment.id)
        for part in self._memory.parts:
            if part.row_nbytes:
                self._archive.add_rows(path, part, part.first_row(reuse.n), reuse.n, own=self._is_own)
        self.checkpoint(message=None, reason="shared")
        self._archive.log("donation", n_tokens=reuse.n, nbytes=self.state_nbytes, reason="shared", donor=name)
        return True

    def mark_live(self, reuse: Reuse) -> None:
        """Note that a turn went on from a place: its state counts as this process's own from now on."""
        self._archive.asleep -= {run.segment.id for run in self._archive.tree.path(reuse.cursor)}
        self._loss = None

    def evaluate(self, token_ids: TokenIds, *, between_layers: Callable[[], None] = lambda: None) -> F32:
        """Evaluate one ubatch; return the final hidden state of its last token, shape (1, n_embd).

        `between_layers` may raise to cancel: the slot is then as it was before. So it is after NotFiniteError.
        """
        hidden = self._model.forward(token_ids, self._memory, between_layers=between_layers)
        self._hidden = hidden[-1:].copy()
        self._pending += token_ids.tolist()
        if len(self._pending) >= _SEGMENT_TOKENS:
            self._flush()
        return self._hidden

    def checkpoint(self, *, message: int | None, reason: CheckpointReason) -> None:
        """Take a context checkpoint at the present length, unless there is one, and drop what exceeds the budget then.

        Where the budget does not even hold this place, there is none: of what can be cut back, as many rows are kept
        as fit. Raises NotFiniteError, and stores nothing, where the logits are not finite.
        """
        is_known = not self._pending and self._cursor in {c.cursor for c in self._archive.checkpoints.values()}
        next_tokens = None
        if self._hidden is not None and not is_known:
            next_tokens = NextTokens.of(self._model.logits(self._hidden)[0], kernels=self._model.kernels.identity)
        self._flush()
        if self.n_tokens > self._most_tokens():
            if reason in MESSAGE_ENDS:
                self._archive.log(OVER_BUDGET, n_tokens=self.n_tokens, n_kept=self._most_tokens(), reason="disk_budget")
        elif self._hidden is not None and next_tokens is not None:
            self._take_checkpoint(self._hidden[0], next_tokens, message=message, reason=reason)
        if self._disk_budget is not None:
            prune(
                self._archive,
                self._memory.parts,
                live=self._cursor,
                n_kept=min(self.n_tokens, self._most_tokens()),
                budget=self._disk_budget,
                rewindable=self._memory.rewindable,
            )

    def _take_checkpoint(
        self, hidden: F32, next_tokens: NextTokens, *, message: int | None, reason: CheckpointReason
    ) -> None:
        path = self._archive.tree.path(self._cursor)
        for part in self._memory.parts:
            if part.row_nbytes:
                starts = (part.first_row(max(0, self.n_tokens - n)) for n in (*_LAST_WORDS, 0))
                lo = next(lo for lo in starts if part.has_rows(lo, self.n_tokens))
                self._archive.add_rows(path, part, lo, self.n_tokens, own=self._is_own)
        payload = CheckpointPayload(hidden, next_tokens.to_bytes(), self._memory.checkpoint())
        self._archive.add_checkpoint(self._cursor, payload, message=message, reason=reason, own=self._is_own)

    def resume(self) -> None:
        """Store what is live once more, after writes failed."""
        self._flush()
        self._archive.resume()
        self._store_live_rows()
        self.checkpoint(message=None, reason="retry")

    def _store_live_rows(self) -> None:
        """Store those rows of rewindable parts that are live and not stored."""
        path = self._archive.tree.path(self._cursor)
        for part in self._memory.parts:
            if part.rewindable:
                self._archive.add_rows(path, part, 0, min(self.n_tokens, self._most_tokens()), own=self._is_own)

    def _flush(self) -> None:
        """Make a segment of the tokens evaluated since the last one; store the rows of rewindable parts."""
        if not self._pending:
            return
        token_ids = np.array(self._pending, np.int32)
        self._pending.clear()
        self._cursor = self._archive.add_segment(self._cursor, token_ids)
        last_run = self._archive.tree.path(self._cursor)[-1:]
        for part in self._memory.parts:
            if part.rewindable:
                lo, hi = last_run[0].start, min(self.n_tokens, self._most_tokens())
                self._archive.add_rows(last_run, part, lo, hi, own=self._is_own)

    def _most_tokens(self) -> int:
        """Return for how many tokens the disk budget holds what going on behind them needs."""
        if self._disk_budget is None:
            return _NO_LIMIT
        parts = self._memory.parts
        by_token = sum(part.row_nbytes for part in parts if part.rewindable)
        fixed = sum(part.row_nbytes * (_NO_LIMIT - part.first_row(_NO_LIMIT)) for part in parts if not part.rewindable)
        fixed += sum(part.nbytes for part in parts if not part.row_nbytes)
        fixed += 4 * self._model.config.n_embd + _NEXT_TOKENS_BYTES
        left = self._disk_budget - fixed
        if left <= 0:
            return 0
        return left // by_token if by_token else _NO_LIMIT

    def _rewind(self, reuse: Reuse) -> bool:
        """Cut the live memory back to the place, if it lies on the live path."""
        if self._archive.tree.back_to(self._cursor, reuse.n) != reuse.cursor:
            return False
        if reuse.n == self.n_tokens:
            return True
        if self._memory.reuse_point(reuse.n) != reuse.n:
            return False
        hidden = None
        if reuse.checkpoint:
            reading = Reading(self._archive)
            try:
                hidden, _ = reading.checkpoint(self._model, reuse.checkpoint)
            except UnfitError:
                return False
            if reading.records:  # to be checked with the memory that it belongs to
                return False
            self._is_own = self._is_own and reading.is_own
        self._memory.rewind(reuse.n)
        self._cursor, self._hidden = reuse.cursor, hidden
        self._is_own = self._is_own or not reuse.n
        return True

    def _restore(self, reuse: Reuse, between_layers: Callable[[], None]) -> None:
        """Read the place's rows and state into a new memory, which takes the old one's place if all is well.

        Raises UnfitError otherwise.
        """
        reading = Reading(self._archive)
        memory, hidden = reading.memory(self._model, self._kv_type, reuse.cursor, reuse.checkpoint)
        if reading.records:
            check = SpotCheck(self._model, self._kv_type, self._archive, between_layers)
            check.check(reading, memory, reuse.cursor, hidden)
        self._memory, self._hidden, self._is_own = memory, hidden, reading.is_own
        self._cursor = reuse.cursor
        self._archive.log(
            "restore", n_tokens=reuse.n, n_common=reuse.n_common, nbytes=self.state_nbytes, reason=reuse.reason
        )
