"""The sleeping side of a slot: what of its state is in the slot file, and the way there and back.

Writes are handed to the store thread as immutable bytes; the index of what is there is kept here, so that
decisions need no file. Reads wait for everything written before them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from engine.memory import MemoryPart, RowChunk
from engine.slot.records import JSON, Checkpoint, CheckpointPayload, LogEntry, RowSpan, Segment
from engine.slot.segments import Cursor, Run, SegmentTree, TokenIds
from engine.slot.slot_file import SlotFile
from engine.slot.store import Store

_BLOB_BYTES = 4 << 20  # rows are stored in pieces of at most this size


class Archive:
    """Segments, rows and checkpoints of one model in one slot file."""

    def __init__(self, store: Store, model: int) -> None:
        self._store = store
        self._model = model

        def read(file: SlotFile) -> tuple[list[Segment], list[RowSpan], list[Checkpoint], int]:
            segments = list(file.segments(model).values())
            return segments, file.rows_index(model), file.checkpoints(model), file.next_state_id()

        segments, rows, checkpoints, self._next_id = store.call(read).result()
        self.tree = SegmentTree(segments, rows)
        self.checkpoints = {checkpoint.id: checkpoint for checkpoint in checkpoints}
        self.asleep = {segment.id for segment in segments}  # not used since the file was opened

    def add_segment(self, after: Cursor, token_ids: TokenIds) -> Cursor:
        """Store the run of ids that was evaluated after a cursor; return the cursor behind it."""
        parent = None if after.segment is None else self.tree.segment(after.segment)
        segment = Segment.follow(
            self._new_id(), model=self._model, parent=parent, length=after.length, token_ids=token_ids
        )
        self.tree.add(segment)
        self._store.post(lambda file: file.put_segment(segment), nbytes=token_ids.nbytes)
        return Cursor(segment.id, len(token_ids))

    def add_rows(self, path: list[Run], part: MemoryPart, lo: int, hi: int) -> None:
        """Store those of the part's rows lo .. hi - 1 along a path that are not stored yet."""
        step = max(1, _BLOB_BYTES // part.row_nbytes)
        for run in path:
            for start, stop in self.tree.gaps([run], part.kind, lo, hi):
                for piece in range(start, stop, step):
                    self._put_rows(run, part.kind, part.export_rows(piece, min(piece + step, stop)))

    def _put_rows(self, run: Run, part: str, chunk: RowChunk) -> None:
        lo, hi = chunk.lo - run.start, chunk.hi - run.start
        span = RowSpan(self._new_id(), run.segment.id, part, lo, hi, nbytes=len(chunk.data))
        self.tree.add_rows(span)
        self._store.post(lambda file: file.put_rows(span, chunk.data), nbytes=span.nbytes)

    def add_checkpoint(self, at: Cursor, payload: CheckpointPayload, *, message: int | None, reason: str) -> None:
        """Store a checkpoint; the rows that it refers to are stored already."""
        assert at.segment is not None
        checkpoint = Checkpoint(
            id=self._new_id(),
            segment=at.segment,
            length=at.length,
            message=message,
            reason=reason,
            created=time.time(),
            has_states=payload.states is not None,
        )
        self.checkpoints[checkpoint.id] = checkpoint
        nbytes = payload.hidden.nbytes + len(payload.states or b"")
        self._store.post(lambda file: file.put_checkpoint(checkpoint, payload), nbytes=nbytes)
        self.log("checkpoint", n_tokens=self.tree.n_tokens(at), reason=reason, nbytes=nbytes)

    def log(self, event: str, **detail: JSON) -> None:
        """Note what happened to the state in the conversation's log."""
        entry = LogEntry(time.time(), event, detail)
        self._store.post(lambda file: file.append_log(entry), nbytes=1)

    def read_checkpoint(self, checkpoint: Checkpoint) -> CheckpointPayload | None:
        """Read a checkpoint's payload; None when it is damaged."""
        return self._store.call(SlotFile.read_checkpoint, checkpoint.id).result()

    def read_rows(self, path: list[Run], part: str, lo: int, hi: int) -> Iterator[RowChunk]:
        """Read the rows lo .. hi - 1 along a path, in ascending chunks.

        What is damaged or gone is left out, and out of the index as well.
        """
        for run in path:
            for span in self.tree.rows(run, part, lo, hi):
                data = self._store.call(SlotFile.read_rows, span.id).result()
                if data is None:
                    self.tree.remove_rows(span)
                else:
                    yield RowChunk(run.start + span.lo, run.start + span.hi, data)

    def forget(self, at: Cursor, checkpoint: Checkpoint | None, parts: Iterable[str]) -> None:
        """Never look again for a place whose state could not be read."""
        if checkpoint is not None:
            self.checkpoints.pop(checkpoint.id, None)
        elif at.segment is not None:
            run = self.tree.path(at)[-1]
            for part in parts:
                for span in self.tree.rows(run, part, run.start, run.end):
                    self.tree.remove_rows(span)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1
