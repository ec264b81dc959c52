"""Slot files as a stranger may send them: state of another text, or nobody's, under right checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.kernels.kv_types import KV_TYPES
from engine.memory import MemoryPart, RowChunk
from engine.memory.attention import AttentionMemory
from engine.memory.kv_rows import KVBuffer
from engine.runtime import Runtime
from engine.slot.file.slot_file import SlotFile
from engine.slot.next_tokens import NextTokens
from engine.slot.records import CheckpointPayload, Cursor, ModelIdentity, StoredRows
from engine.slot.segments import SegmentTree

ChangeIds = Callable[[np.ndarray], np.ndarray]
_N_UBATCH = 64


def forget_marks(path: Path) -> None:
    """Leave a file as somebody without the key writes it."""
    change_marks(path, lambda _: None)


def forge_marks(path: Path) -> None:
    """Have all marks in a file be of somebody else's making."""
    change_marks(path, lambda mark: mark[::-1])


def change_marks(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Replace the marks in a file; None takes one away."""
    with SlotFile.open(path) as file, file.transaction():
        for id, mark in file.marks().items():
            file._raw.delete("mark", id)
            if (changed := change(mark)) is not None:
                file._raw.insert("mark", {"id": id, "mac": changed})


def change_payloads(
    path: Path,
    *,
    rows: Callable[[StoredRows, bytes], bytes] = lambda _, data: data,
    checkpoint: Callable[[CheckpointPayload], CheckpointPayload] = lambda payload: payload,
) -> None:
    """Replace what rows and checkpoints hold, under right checksums and with the marks that they had."""
    with SlotFile.open(path) as file, file.transaction():
        marks = file.marks()
        for model in file.models():
            for stored in file.rows_index(model.id):
                data = file.read_rows(stored.id)
                assert data is not None
                file.delete_rows(stored.id)
                changed = rows(stored, data)
                file.put_rows(replace(stored, nbytes=len(changed)), changed, mark=marks.get(stored.id))
            for one in file.checkpoints(model.id):
                payload = file.read_checkpoint(one.id)
                assert payload is not None
                if one.nbytes:
                    file.delete_checkpoint(one.id)
                    payload = checkpoint(payload)
                    file.put_checkpoint(replace(one, nbytes=payload.nbytes), payload, mark=marks.get(one.id))


def substitute(path: Path, runtimes: Iterable[Runtime], change: ChangeIds) -> None:
    """Replace all state by that of other ids in the same places: `change` gives them for those that the file keeps."""
    with SlotFile.open(path) as file:
        for model in file.models():
            known = (r for r in runtimes if (r.fingerprint, r.settings.kv_type) == (model.fingerprint, model.kv_type))
            if (runtime := next(known, None)) is not None:
                with file.transaction():
                    _substitute(file, model, runtime, change)


def _substitute(file: SlotFile, model: ModelIdentity, runtime: Runtime, change: ChangeIds) -> None:
    marks, rows = file.marks(), file.rows_index(model.id)
    tree = SegmentTree(file.segments(model.id).values(), rows)
    for segment in tree.segments():
        checkpoints = [c for c in file.checkpoints(model.id) if c.segment == segment.id and c.nbytes]
        spans = [stored for stored in rows if stored.segment == segment.id]
        if not checkpoints and not spans:
            continue
        start, end = tree.n_tokens(Cursor(segment.id, 0)), Cursor(segment.id, len(segment.token_ids))
        told = _Telling(runtime, change(tree.token_ids(end)), {start + c.length for c in checkpoints})
        for stored in spans:
            data = told.rows(stored.part, start + stored.lo, start + stored.hi)
            assert len(data) == stored.nbytes
            file.delete_rows(stored.id)
            file.put_rows(stored, data, mark=marks.get(stored.id))
        for one in checkpoints:
            file.delete_checkpoint(one.id)
            payload = told.payloads[start + one.length]
            file.put_checkpoint(replace(one, nbytes=payload.nbytes), payload, mark=marks.get(one.id))


class _Telling:
    """Everything that a model remembers of a text while it is told."""

    def __init__(self, runtime: Runtime, token_ids: np.ndarray, ends: set[int]) -> None:
        self.payloads: dict[int, CheckpointPayload] = {}
        self._rows: dict[tuple[str, int], RowChunk] = {}
        self._kv_type = KV_TYPES[runtime.settings.kv_type]
        self._memory = memory = runtime.model.new_memory(self._kv_type)
        stops = sorted({*range(0, len(token_ids), _N_UBATCH), *ends, len(token_ids)} - {0})
        for stop in stops:
            start = memory.n_tokens
            hidden = runtime.model.forward(token_ids[start:stop], memory)[-1]
            for part in memory.parts:
                self._rows |= {(part.kind, i): part.export_rows(i, i + 1) for i in range(start, stop)}
            if stop in ends:
                digest = NextTokens.of(runtime.model.logits(hidden[None])[0], kernels=runtime.model.kernels.identity)
                self.payloads[stop] = CheckpointPayload(hidden.copy(), digest.to_bytes(), memory.checkpoint())

    def rows(self, kind: str, lo: int, hi: int) -> bytes:
        part = next(part for part in self._memory.parts if part.kind == kind)
        buffer = KVBuffer(_layers(part), self._kv_type)
        buffer.load(lo, hi, [self._rows[kind, i] for i in range(lo, hi)])
        return bytes(buffer.export(lo, hi).data)


def _layers(part: MemoryPart) -> tuple:
    assert isinstance(part, AttentionMemory)
    return part._buffer.layers
