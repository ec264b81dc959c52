"""How llama-server keeps and uses context checkpoints: a model of one slot in numbers, to compare with.

Follows tools/server/server-context.cpp of llama.cpp (b11549). A checkpoint is known by its length; what it holds are
the rows of one window, or the recurrent states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerSettings:
    """llama-server's options that matter here; `n_swa` is 0 for recurrent memory."""

    n_ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    n_swa: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512


@dataclass(frozen=True)
class ServerCheckpoint:
    """A checkpoint at `n_tokens`, made in task `task` when the live memory began at `pos_min`."""

    n_tokens: int
    pos_min: int
    task: int


@dataclass
class ServerSlot:
    """Counts the tokens that llama-server evaluates for the prompts of one slot."""

    settings: ServerSettings
    checkpoints: list[ServerCheckpoint] = field(default_factory=list)
    _n_tokens: int = 0
    _ring_start: int = 0  # first position of the sliding window's ring
    _task: int = 0

    def prompt(self, n_common: int, length: int, user_starts: Sequence[int]) -> int:
        """Take a prompt of `length` tokens whose first `n_common` are those in the slot; return how many are evaluated.

        `user_starts` are the positions at which user messages begin.
        """
        self._task += 1
        n_past = self._return_to(n_common, has_new=n_common < length)
        if n_past == length:
            n_past -= 1
        self._n_tokens = n_past
        while self._n_tokens < length:
            end = self._batch_end(length, user_starts)
            if self._wants_checkpoint(end, length, user_starts):
                self._create_checkpoint()
            self._grow(end - self._n_tokens)
        return length - n_past

    def generate(self, n: int) -> None:
        """Add n tokens of a reply; no checkpoints are made meanwhile."""
        self._grow(n)

    def _grow(self, n: int) -> None:
        self._n_tokens += n
        ring = self.settings.n_swa + self.settings.n_ubatch
        self._ring_start = max(self._ring_start, self._n_tokens - ring)

    @property
    def _pos_min(self) -> int:
        return self._ring_start if self.settings.n_swa else self._n_tokens - 1

    def _return_to(self, n_past: int, *, has_new: bool) -> int:
        threshold = max(0, n_past - self.settings.n_swa - (not has_new))
        if n_past and self._pos_min >= threshold:
            usable = [
                c for c in self.checkpoints if c.n_tokens - 1 <= n_past and (c.pos_min < threshold or c.pos_min == 0)
            ]
            if usable:
                newest = usable[-1]
                n_past = min(n_past, max(newest.pos_min + 1, newest.n_tokens - 1), newest.n_tokens)
                self._ring_start = max(0, newest.n_tokens - self.settings.n_swa)
            else:
                n_past = self._ring_start = 0
        self.checkpoints = [c for c in self.checkpoints if c.n_tokens - 1 <= n_past]
        return n_past

    def _batch_end(self, length: int, user_starts: Sequence[int]) -> int:
        s, n = self.settings, self._n_tokens
        newest = self.checkpoints[-1].n_tokens + s.checkpoint_min_step if self.checkpoints else 0
        stops = [length, n + s.n_batch, length - min(s.n_batch, 4 + s.n_ubatch), length - min(s.n_batch, 4)]
        stops += [start for start in user_starts if start == user_starts[-1] or start > newest]
        return min(stop for stop in stops if stop > n)

    def _wants_checkpoint(self, end: int, length: int, user_starts: Sequence[int]) -> bool:
        start = self._n_tokens
        near_end = length < end + self.settings.n_ubatch
        if start == 0 or (end < length and start not in user_starts and not near_end):
            return False
        if not self.checkpoints or start == user_starts[-1] or near_end:
            return True
        return start > self.checkpoints[-1].n_tokens + self.settings.checkpoint_min_step

    def _create_checkpoint(self) -> None:
        n_max, kept = self.settings.n_ctx_checkpoints, self.checkpoints
        last, place = -1, 0
        while len(kept) + 1 >= n_max and place < len(kept):
            c = kept[place]
            if c.task != self._task and last >= 0 and c.n_tokens <= last + self.settings.checkpoint_min_step:
                del kept[place]
            else:
                last = c.n_tokens
                place += 1
        while len(kept) >= n_max:
            del kept[0]
        new = ServerCheckpoint(self._n_tokens, self._pos_min, self._task)
        self.checkpoints = [c for c in kept if c.n_tokens != new.n_tokens] + [new]
