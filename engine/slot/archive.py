"""The sleeping side of a slot: what of its state is in the slot file, and the way there and back.

Writes are handed to the store thread as immutable bytes; the index of what is there is kept here, so that
decisions need no file. Reads wait for everything written before them. What is read is used by `reading`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from engine.arrays import TokenIds
from engine.errors import DormouseError
from engine.memory import MemoryPart, RowChunk
from engine.slot.file.failures import DamagedError
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.marks import Claim, Column, Marks, columns
from engine.slot.records import (
    JSON,
    MESSAGE_ENDS,
    Checkpoint,
    CheckpointPayload,
    CheckpointReason,
    Cursor,
    LogEntry,
    ModelIdentity,
    Segment,
    StoredRows,
)
from engine.slot.segments import Run, SegmentTree

T = TypeVar("T")

OVER_BUDGET = "over_budget"
"""The event in the log that a turn ended where the disk budget holds no state of it."""

_BLOB_BYTES = 4 << 20  # rows are stored in pieces of at most this size
_BLOB_ROWS = 128  # which go only when none of their rows is needed any more


class Archive:
    """Segments, rows and checkpoints of one model in one slot file."""

    def __init__(
        self, store: Store, model: int, *, origins: dict[int, bool] | None = None, marked_only: bool = False
    ) -> None:
        """Read the index of what the file has under the model's id; with `marked_only` what has marks is all there is.

        `origins` is what this process knows of records, by id: True for those that were computed here, False for those
        that came from elsewhere and passed their check. It may outlive the archive.
        """
        self._store = store
        self._model = model
        self._marked_only = marked_only
        self.origins = {} if origins is None else origins
        self._identity = self._store.call(_identity, model).result()
        self._next_id = 0
        self._keeps_nothing = False
        self._read_index()
        self.asleep = {segment.id for segment in self.tree.segments()}  # not used since the file was opened

    def _read_index(self) -> None:
        def read(file: SlotFile) -> tuple[list[Segment], list[StoredRows], list[Checkpoint], int]:
            segments = list(file.segments(self._model).values())
            return segments, file.rows_index(self._model), file.checkpoints(self._model), file.next_state_id()

        segments, rows, checkpoints, next_id = self._store.call(read).result()
        marks = self._store.call(SlotFile.marks).result()
        if self._marked_only:
            rows = [stored for stored in rows if stored.id in marks]
            checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint.id in marks]
        self.tree = SegmentTree(segments, rows)
        self._marks = Marks(self._identity, self.tree, marks)
        self.checkpoints = {checkpoint.id: checkpoint for checkpoint in checkpoints if checkpoint.nbytes}
        self.given_up = {checkpoint.id: checkpoint for checkpoint in checkpoints if not checkpoint.nbytes}
        self._next_id = max(self._next_id, next_id)

    def keep_nothing(self) -> None:
        """Delete all state of the model, and store none from now on: the file is to hold text alone."""
        if len(self.tree):
            self.log("evict", nbytes=self.nbytes, reason="disk_budget")
            self._store.call(SlotFile.drop_state, self._model)
        self._keeps_nothing = True
        self.tree = SegmentTree()
        self._marks = Marks(self._identity, self.tree, {})
        self.checkpoints.clear()
        self.given_up.clear()
        self.asleep.clear()

    def resume(self) -> None:
        """Go on after writes failed: forget rows and checkpoints that are not stored, store segments again."""
        known = list(self.tree.segments())
        self._read_index()
        stored = {segment.id for segment in self.tree.segments()}
        for segment in known:
            if segment.id not in stored:
                self._put_segment(segment)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows and checkpoints."""
        rows = sum(span.nbytes for span in self.tree.spans())
        return rows + sum(checkpoint.nbytes for checkpoint in self.checkpoints.values())

    def add_segment(self, after: Cursor, token_ids: TokenIds) -> Cursor:
        """Store the run of ids that was evaluated after a cursor; return the cursor behind it."""
        parent = None if after.segment is None else self.tree.segment(after.segment)
        segment = Segment.follow(
            self._new_id(), model=self._model, parent=parent, length=after.length, token_ids=token_ids
        )
        self._put_segment(segment)
        return Cursor(segment.id, len(token_ids))

    def _put_segment(self, segment: Segment) -> None:
        self.tree.add(segment)
        if not self._keeps_nothing:
            self._store.post(lambda file: file.put_segment(segment), nbytes=segment.token_ids.nbytes)

    def add_rows(self, path: list[Run], part: MemoryPart, lo: int, hi: int, *, own: bool) -> None:
        """Store those of the part's rows lo .. hi - 1 along a path that are not stored yet.

        They get marks if they are `own`: computed here, on nothing that was not.
        """
        step = max(1, min(_BLOB_ROWS, _BLOB_BYTES // part.row_nbytes))
        for run in path:
            for start, stop in self.tree.gaps([run], part.kind, lo, hi):
                for piece in range(start, stop, step):
                    self._put_rows(run, part.kind, part.export_rows(piece, min(piece + step, stop)), own=own)

    def _put_rows(self, run: Run, part: str, chunk: RowChunk, *, own: bool) -> None:
        lo, hi = chunk.lo - run.start, chunk.hi - run.start
        span = StoredRows(self._new_id(), run.segment.id, part, lo, hi, nbytes=len(chunk.data))
        self.tree.add_rows(span)
        self.origins[span.id] = own
        mark = self._marking(self._marks.of_rows(span), (chunk.data,), own=own)
        self._store.post(lambda file: file.put_rows(span, chunk.data, mark=mark()), nbytes=span.nbytes)

    def add_checkpoint(
        self, at: Cursor, payload: CheckpointPayload, *, message: int | None, reason: CheckpointReason, own: bool
    ) -> None:
        """Store a checkpoint, marked if it is `own`; the rows that it refers to are stored already."""
        assert at.segment is not None
        checkpoint = Checkpoint(
            id=self._new_id(),
            segment=at.segment,
            length=at.length,
            message=message,
            reason=reason,
            created=time.time(),
            has_states=payload.states is not None,
            nbytes=payload.nbytes,
        )
        for place in [c for c in self.given_up.values() if c.cursor == at]:
            del self.given_up[place.id]
            self._post(SlotFile.delete_checkpoint, place.id)
        self.checkpoints[checkpoint.id] = checkpoint
        self.origins[checkpoint.id] = own
        mark = self._marking(self._marks.of_checkpoint(checkpoint), columns(payload), own=own)
        self._store.post(lambda file: file.put_checkpoint(checkpoint, payload, mark=mark()), nbytes=payload.nbytes)
        self.log("checkpoint", n_tokens=self.tree.n_tokens(at), reason=reason, nbytes=payload.nbytes)

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Delete what a checkpoint keeps; where a message ended stays known."""
        del self.checkpoints[checkpoint.id]
        if checkpoint.reason in MESSAGE_ENDS:
            self.given_up[checkpoint.id] = replace(checkpoint, has_states=False, nbytes=0)
            self._post(SlotFile.empty_checkpoint, checkpoint)
        else:
            self._post(SlotFile.delete_checkpoint, checkpoint.id)

    def drop_rows(self, span: StoredRows) -> None:
        """Delete a span of rows."""
        self.tree.remove_rows(span)
        self._post(SlotFile.delete_rows, span.id)

    def shrink(self) -> None:
        """Have the file give back the space of what was deleted, when it comes to it."""
        self._store.call(SlotFile.shrink)

    def log(self, event: str, **detail: JSON) -> None:
        """Note what happened to the state in the conversation's log."""
        self._post(SlotFile.append_log, LogEntry(time.time(), event, detail))

    def read_checkpoint(self, checkpoint: Checkpoint) -> CheckpointPayload | None:
        """Read a checkpoint's payload; None when it is damaged."""
        return self._store.call(SlotFile.read_checkpoint, checkpoint.id).result()

    def read_rows(self, stored: StoredRows) -> Future[bytes | None]:
        """Have rows read; the future has None for those that are damaged or gone."""
        return self._store.call(SlotFile.read_rows, stored.id)

    def origin_of_rows(self, stored: StoredRows, data: bytes) -> bool | None:
        """Return what is known of where rows came from, see `origins`: None if nothing."""
        return self._origin(stored.id, lambda: self._marks.of_rows(stored), (data,))

    def origin_of_checkpoint(self, checkpoint: Checkpoint, payload: CheckpointPayload) -> bool | None:
        """Return what is known of where a checkpoint came from, see `origins`: None if nothing."""
        return self._origin(checkpoint.id, lambda: self._marks.of_checkpoint(checkpoint), columns(payload))

    def _origin(self, id: int, claim: Callable[[], Claim], payload: tuple[Column, ...]) -> bool | None:
        if id not in self.origins and self._marks.hold(id, claim(), payload):
            self.origins[id] = True
        return self.origins.get(id)

    def _marking(self, claim: Claim, payload: tuple[Column, ...], *, own: bool) -> Callable[[], bytes | None]:
        """Return what makes a mark, for the thread that stores it."""
        marks = self._marks
        return lambda: marks.make(claim, payload) if own else None

    def forget(self, at: Cursor, checkpoint: Checkpoint | None, parts: Iterable[str]) -> None:
        """Delete the state of a place where it is not what it should be, though its checksums are right."""
        if checkpoint is not None:
            if checkpoint.id in self.checkpoints:
                self.drop_checkpoint(checkpoint)
        elif at.segment is not None:
            run = self.tree.path(at)[-1]
            for part in parts:
                for stored in self.tree.rows(run, part, run.start, run.end):
                    self.drop_rows(stored)

    def forget_received(self, at: Cursor) -> None:
        """Delete all state before a place that was not computed here."""
        for run in self.tree.path(at):
            for stored in self.tree.spans_of(run.segment.id):
                data = self.read_rows(stored).result() if stored.lo < run.length else None
                if stored.lo < run.length and not (data and self.origin_of_rows(stored, data)):
                    self.drop_rows(stored)
            here = [c for c in self.checkpoints.values() if c.segment == run.segment.id and c.length <= run.length]
            for checkpoint in here:
                payload = self.read_checkpoint(checkpoint)
                if not (payload and self.origin_of_checkpoint(checkpoint, payload)):
                    self.drop_checkpoint(checkpoint)

    def tell(self, text: str) -> None:
        """Tell the person something about the state."""
        self._store.tell(text)

    def repair(self) -> bool:
        """Have what turned out to be damaged taken out of the file, so that it is found once; tell whether any was."""
        try:
            repaired = self._store.repair().result()
        except DormouseError as error:
            self._store.tell(str(error))
            return False
        if repaired is not None:
            self._store.tell(str(repaired))
            self.resume()
        return repaired is not None

    def _post(self, change: Callable[[SlotFile, T], None], argument: T) -> None:
        self._store.post(lambda file: change(file, argument), nbytes=1)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _identity(file: SlotFile, model: int) -> ModelIdentity:
    """Return the identity of a model in a file; raise DamagedError if there is none of this id."""
    for identity in file.models():
        if identity.id == model:
            return identity
    raise DamagedError(f"{file.name} is damaged: it does not know whose state it holds.")
