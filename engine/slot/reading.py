"""Bringing a place's state back from an archive into a memory, with an account of where it came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
from numpy.typing import DTypeLike

from engine.arrays import F32
from engine.errors import DormouseError
from engine.memory import Memory, RowChunk
from engine.models import Model
from engine.slot.archive import Archive
from engine.slot.next_tokens import NextTokens
from engine.slot.records import Checkpoint, Cursor, StoredRows
from engine.slot.segments import Run

_AHEAD = 2  # records that are read while another one is looked at


class UnfitError(DormouseError):
    """A place's state is not what it should be: damaged, or another one."""


class Reading:
    """Reads from an archive, and keeps account of what nobody vouches for.

    `is_own` says that everything read was computed by this installation. `received` are the ranges of positions whose
    rows were neither computed here nor ever checked, `records` the ids of all records for which that is so.
    """

    def __init__(self, archive: Archive, *, own_only: bool = False) -> None:
        """With `own_only` what was not computed here is as unfit as what is damaged."""
        self.is_own = True
        self.received: list[tuple[int, int]] = []
        self.records: set[int] = set()
        self._archive = archive
        self._own_only = own_only

    def memory(
        self, model: Model, kv_type: DTypeLike, at: Cursor, checkpoint: Checkpoint | None
    ) -> tuple[Memory, F32 | None]:
        """Return a memory as it was at a place, and the final hidden state (1, n_embd) if there is a checkpoint.

        Raises UnfitError where something is damaged or missing, fails its self-test, or is not finite.
        """
        n = self._archive.tree.n_tokens(at)
        path = self._archive.tree.path(at)
        hidden = state = None
        if checkpoint is not None:
            hidden, state = self.checkpoint(model, checkpoint)
        memory = model.new_memory(kv_type)
        rows = {part.kind: self._rows(path, part.kind, part.first_row(n), n) for part in memory.parts}
        try:
            memory.restore(n, rows, state)
        except (DormouseError, ValueError) as error:
            raise UnfitError(f"The rows or states before {n} are not what they should be.") from error
        return memory, hidden

    def checkpoint(self, model: Model, checkpoint: Checkpoint) -> tuple[F32, bytes | None]:
        """Return a checkpoint's final hidden state (1, n_embd), and its memory state; raises UnfitError."""
        try:
            payload = self._archive.read_checkpoint(checkpoint)
            if payload is None:
                raise UnfitError("A checkpoint is damaged.")
            self._account(checkpoint.id, self._archive.origin_of_checkpoint(checkpoint, payload))
            hidden = payload.hidden.reshape(1, model.config.n_embd)
            logits = model.logits(hidden)[0]
            expected = NextTokens.from_bytes(payload.next_tokens)
        except (DormouseError, ValueError) as error:
            raise UnfitError("A checkpoint holds what can't be.") from error
        if not np.isfinite(hidden).all() or not expected.agrees(logits, kernels=model.kernels.identity):
            raise UnfitError("A checkpoint fails its self-test.")
        return hidden, payload.states

    def _rows(self, path: list[Run], part: str, lo: int, hi: int) -> Iterator[RowChunk]:
        """Yield the rows lo .. hi - 1 along a path, in ascending chunks, each row once.

        A path may leave a segment inside what is stored together: rows behind the fork are another branch's. What is
        damaged or gone is left out, and out of the index as well.
        """
        for run, stored, data in self._read(path, part, lo, hi):
            if data is None:
                self._archive.tree.remove_rows(stored)
                continue
            chunk = RowChunk(run.start + stored.lo, run.start + stored.hi, data)
            wanted = max(lo, run.start), min(hi, run.end)
            if max(chunk.lo, wanted[0]) < min(chunk.hi, wanted[1]):
                chunk = chunk.cut(*wanted)
                lo = chunk.hi  # of rows that are stored twice, once is enough
                self._account(stored.id, self._archive.origin_of_rows(stored, data), chunk)
                yield chunk

    def _read(self, path: list[Run], part: str, lo: int, hi: int) -> Iterator[tuple[Run, StoredRows, bytes | None]]:
        """Yield stored rows as they come, the next ones being read meanwhile."""
        coming: deque[tuple[Run, StoredRows, Future[bytes | None]]] = deque()
        for run in path:
            for stored in self._archive.tree.rows(run, part, lo, hi):
                coming.append((run, stored, self._archive.read_rows(stored)))
                if len(coming) > _AHEAD:
                    run_of_it, first, data = coming.popleft()
                    yield run_of_it, first, data.result()
        for run, stored, data in coming:
            yield run, stored, data.result()

    def _account(self, id: int, origin: bool | None, chunk: RowChunk | None = None) -> None:
        if origin:
            return
        if self._own_only:
            raise UnfitError("It was not computed here.")
        self.is_own = False
        if origin is None:
            self.records.add(id)
            if chunk is not None:
                self.received.append((chunk.lo, chunk.hi))
