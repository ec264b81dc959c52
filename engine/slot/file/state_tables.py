"""The state in a slot file: segments, memory rows and checkpoints, of one or several models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np

from engine.slot.file import mapping
from engine.slot.file.failures import DamagedError
from engine.slot.file.tables import Tables
from engine.slot.file.upgrades import FIRST_WITH_CUT_ROWS, behind_forks
from engine.slot.records import Checkpoint, CheckpointPayload, ModelIdentity, Segment, StoredRows

_DELETE_BYTES = 16 << 20  # of payload in one transaction


class StateTables(Tables):
    """Gives back state that is exactly what was stored, or leaves it out."""

    _suspects: Set[int] = frozenset()  # segments that an upgrade would put aside

    # Ids of segments, rows and checkpoints are chosen by the writer, who therefore need not wait for a write.

    def next_state_id(self) -> int:
        """Return an id above those of all segments, rows and checkpoints that ever were in the file."""
        return max(self._raw.next_id(table) for table in ("segment", "rows", "checkpoint"))

    def models(self) -> list[ModelIdentity]:
        """Return the identities under which states are stored."""
        return self._records("model", mapping.model_from)

    def put_model(self, model: ModelIdentity) -> ModelIdentity:
        """Store a model and return it with its id: that of the same fingerprint and K/V type if there is one."""
        values = mapping.model_values(model)
        for known in self.models():
            if (known.fingerprint, known.kv_type) == (model.fingerprint, model.kv_type):
                if mapping.model_values(known) != values:
                    self._raw.update("model", known.id, values)
                return replace(model, id=known.id)
        return replace(model, id=self._raw.insert("model", values))

    def recognize_model(self, id: int, fingerprint: str) -> None:
        """Note that states which are stored under another fingerprint are this model's."""
        self._raw.update("model", id, {"fingerprint": fingerprint})

    def segments(self, model: int) -> dict[int, Segment]:
        """Return a model's segments by id, parents before children, each with its whole path and right digests."""
        return {id: segment for id, segment in self._all_segments().items() if segment.model == model}

    def put_segment(self, segment: Segment) -> None:
        """Store a segment; its parent must have been stored before."""
        self._raw.insert("segment", mapping.segment_values(segment))

    def rows_index(self, model: int) -> list[StoredRows]:
        """Return which memory rows of a model's segments are stored."""
        segments = self._all_segments()
        spans = self._records("rows", lambda values: mapping.row_span_from(values, segments), but=self._is_put_aside)
        return [span for span in spans if segments[span.segment].model == model]

    def read_rows(self, id: int) -> bytes | None:
        """Return the blob of a span, None (and a note in `state_damage`) if it is damaged or gone."""
        payload = self._payload("rows", id)
        return payload["data"] if payload else None

    def put_rows(self, span: StoredRows, data: bytes | memoryview, *, mark: bytes | None = None) -> None:
        """Store memory rows, and their mark if they have one; the writer keeps blobs to at most 4 MiB."""
        with self._raw.transaction():
            self._raw.insert("rows", vars(span), payload={"data": data})
            self._put_mark(span.id, mark)

    def delete_rows(self, id: int) -> None:
        """Delete a span and its blob; the space is used again."""
        self._delete_marked("rows", id)

    def checkpoints(self, model: int) -> list[Checkpoint]:
        """Return the checkpoints on a model's segments, those given up as well, oldest first."""
        segments = self._all_segments()
        checkpoints = self._records(
            "checkpoint", lambda values: mapping.checkpoint_from(values, segments), but=self._is_put_aside
        )
        return [checkpoint for checkpoint in checkpoints if segments[checkpoint.segment].model == model]

    def read_checkpoint(self, id: int) -> CheckpointPayload | None:
        """Return what a checkpoint keeps, None (and a note in `state_damage`) if it is damaged or gone."""
        payload = self._payload("checkpoint", id)
        return mapping.payload_from(payload) if payload else None

    def put_checkpoint(self, checkpoint: Checkpoint, payload: CheckpointPayload, *, mark: bytes | None = None) -> None:
        """Store a checkpoint, and its mark if it has one."""
        with self._raw.transaction():
            self._raw.insert("checkpoint", vars(checkpoint), payload=mapping.payload_values(payload))
            self._put_mark(checkpoint.id, mark)

    def empty_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Give up what a checkpoint keeps, but not where it is; the space is used again."""
        empty = CheckpointPayload(np.empty(0, np.float32), b"")
        with self.transaction():
            self.delete_checkpoint(checkpoint.id)
            self.put_checkpoint(replace(checkpoint, has_states=False, nbytes=0), empty)

    def delete_checkpoint(self, id: int) -> None:
        """Delete a checkpoint; the space is used again."""
        self._delete_marked("checkpoint", id)

    def marks(self) -> dict[int, bytes]:
        """Return the marks of rows and checkpoints by their id; see `engine.slot.marks`."""
        return {values["id"]: values["mac"] for values in self._intact("mark")}

    def shrink(self) -> None:
        """Give unused space back to the file system."""
        self._connection.shrink()

    def drop_state(self, model: int | None = None) -> None:
        """Delete the state of one model, or of all, and give its space back; the transcript stays.

        What is damaged goes with it, whosever it was; pages that can't be read raise `DamagedError`, and only
        `save_copy` gets rid of them. An interruption leaves less state, not wrong state.
        """
        segments = self._all_segments()
        kept = {id for id, segment in segments.items() if model not in (None, segment.model)}
        for table, key in (("rows", "segment"), ("checkpoint", "segment"), ("segment", "id")):
            rows = self._raw.scan(table).records
            dropped = [row for row in rows if not row.intact or row.values[key] not in kept]
            for batch in _batches((row.id, row.values.get("nbytes", 0) if row.intact else 0) for row in dropped):
                with self.transaction():
                    for id in batch:
                        self._delete_marked(table, id)
            self._raw.recount(table)
        self._damaged.clear()
        self._connection.shrink()

    def _all_segments(self) -> dict[int, Segment]:
        found: dict[int, Segment] = {}
        records = {values["id"]: values for values in self._intact("segment")}
        self._suspects = self._find_suspects(records)
        for values in records.values():
            if values["id"] in self._suspects:
                continue
            try:
                found[values["id"]] = mapping.segment_from(values, found)
            except ValueError:
                self._damaged.add("segment")
        return found

    def _is_put_aside(self, values: mapping.Values) -> bool:
        return values["segment"] in self._suspects

    def _find_suspects(self, segments: Mapping[int, mapping.Values]) -> set[int]:
        """Return the segments whose state an older version may have computed on wrong rows; an upgrade drops them."""
        if self._connection.layout >= FIRST_WITH_CUT_ROWS:
            return set()
        borrowed = any(values["donor"] for values in self._intact("receipt"))
        return behind_forks(segments, borrowed=borrowed)

    def _put_mark(self, id: int, mark: bytes | None) -> None:
        if mark is not None:
            self._raw.insert("mark", {"id": id, "mac": mark})

    def _delete_marked(self, table: str, id: int) -> None:
        """Delete a record, and the mark of this id: segments have none."""
        with self._raw.transaction():
            self._raw.delete(table, id)
            self._raw.delete("mark", id)

    def _payload(self, table: str, id: int) -> dict[str, Any] | None:
        try:
            payload = self._raw.read_payload(table, id)
        except DamagedError:
            payload = None
        if payload is None:
            self._damaged.add(table)
        return payload


def _batches(sized: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield lists of ids whose sizes add up to no more than a transaction should hold."""
    batch: list[int] = []
    total = 0
    for id, nbytes in sized:
        if batch and total + nbytes > _DELETE_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(id)
        total += nbytes
    if batch:
        yield batch
