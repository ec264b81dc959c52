"""Records as rows of the slot file, and back.

`*_values` give the columns of a record. `*_from` build a record from the columns of an intact row, each of which is
therefore of its kind, and raise ValueError where they don't fit each other or other records.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from engine.arrays import TokenIds
from engine.slot.file import kinds
from engine.slot.file.kinds import parse_json
from engine.slot.file.record_store import RawRecord
from engine.slot.file.schema import Value
from engine.slot.records import (
    JSON,
    Checkpoint,
    CheckpointPayload,
    Content,
    LogEntry,
    Message,
    ModelIdentity,
    Receipt,
    Segment,
    StoredRows,
)

Values = Mapping[str, Any]


def storable(text: str) -> str:
    """Return the text with `?` for what UTF-8 can't express (lone surrogates)."""
    return text.encode("utf-8", "replace").decode()


def pair_from(values: Values) -> tuple[str, JSON]:
    """Build a key-value pair of the manifest."""
    return values["key"], parse_json(values["value"])


def message_from(row: RawRecord, earlier: Mapping[int, Message]) -> Message:
    """Build a message, marked as damaged unless the record is intact and its parent is an earlier message.

    Of a damaged one only what is shown is taken: its place, its role and its text.
    """
    values = row.values
    parent = values.get("parent") if values.get("parent") in earlier else None
    if is_damaged(row, earlier):
        role = values.get("role")
        role = role if isinstance(role, str) and kinds.ROLE.is_valid(role) else "user"
        return Message(row.id, parent, role, _text(values.get("text")), 0.0, None, damaged=True)
    return Message(
        row.id,
        parent,
        values["role"],
        values["text"],
        values["created"],
        values["finish_reason"],
        values["damaged"] is not None,
    )


def is_damaged(row: RawRecord, earlier: Container[int]) -> bool:
    """Whether the record of a message can't be trusted as it is: it, or its place."""
    parent = row.values.get("parent")
    return not row.intact or (parent is not None and parent not in earlier)


def message_values(message: Message) -> dict[str, Value]:
    """Return the columns of a message except its id."""
    return {
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "created": message.created,
        "finish_reason": message.finish_reason,
        "damaged": 1 if message.damaged else None,
    }


def content_from(values: Values) -> Content:
    """Build token ids of a message."""
    return Content(values["message"], values["tokenizer"], _token_ids(values["token_ids"]))


def content_values(content: Content) -> dict[str, Value]:
    """Return the columns of token ids of a message."""
    return {"message": content.message, "tokenizer": content.tokenizer, "token_ids": _bytes(content.token_ids)}


def model_from(values: Values) -> ModelIdentity:
    """Build a model identity."""
    config = parse_json(values["config"])
    return ModelIdentity(**{name: values[name] for name in _MODEL_COLUMNS}, config=config)


def model_values(model: ModelIdentity) -> dict[str, Value]:
    """Return the columns of a model except its id."""
    values: dict[str, Value] = {name: storable(getattr(model, name)) for name in _MODEL_COLUMNS if name != "id"}
    return values | {"config": json.dumps(dict(model.config))}


_MODEL_COLUMNS = [field.name for field in dataclasses.fields(ModelIdentity) if field.name != "config"]


def segment_from(values: Values, earlier: Mapping[int, Segment]) -> Segment:
    """Build a segment whose parent and digest are right."""
    parent = None
    if values["parent"] is not None:
        parent = earlier.get(values["parent"])
        if parent is None or parent.model != values["model"]:
            raise ValueError("the parent is missing")
    if not 0 <= values["parent_length"] <= (len(parent.token_ids) if parent else 0):
        raise ValueError("the fork lies outside the parent")
    segment = Segment.follow(
        values["id"],
        model=values["model"],
        parent=parent,
        length=values["parent_length"],
        token_ids=_token_ids(values["token_ids"]),
    )
    if segment.digest != values["digest"]:
        raise ValueError("the digest is another one")
    return segment


def segment_values(segment: Segment) -> dict[str, Value]:
    """Return the columns of a segment."""
    return {
        "id": segment.id,
        "model": segment.model,
        "parent": segment.parent,
        "parent_length": segment.parent_length,
        "token_ids": _bytes(segment.token_ids),
        "digest": segment.digest,
    }


def row_span_from(values: Values, segments: Mapping[int, Segment]) -> StoredRows:
    """Build a span that lies inside its segment."""
    segment = segments.get(values["segment"])
    if segment is None or not 0 <= values["lo"] < values["hi"] <= len(segment.token_ids):
        raise ValueError("the span lies outside its segment")
    return StoredRows(**{field.name: values[field.name] for field in dataclasses.fields(StoredRows)})


def checkpoint_from(values: Values, segments: Mapping[int, Segment]) -> Checkpoint:
    """Build a checkpoint that lies inside its segment."""
    segment = segments.get(values["segment"])
    if segment is None or not 0 <= values["length"] <= len(segment.token_ids):
        raise ValueError("the checkpoint lies outside its segment")
    columns = {field.name: values[field.name] for field in dataclasses.fields(Checkpoint)}
    return Checkpoint(**columns | {"has_states": bool(values["has_states"])})


def payload_from(values: Values) -> CheckpointPayload:
    """Build what a checkpoint keeps."""
    hidden = np.frombuffer(values["hidden"], "<f4").astype(np.float32, copy=False)
    return CheckpointPayload(hidden, values["next_tokens"], values["states"])


def payload_values(payload: CheckpointPayload) -> dict[str, Value]:
    """Return the payload columns of a checkpoint."""
    hidden = np.ascontiguousarray(payload.hidden, "<f4").tobytes()
    return {"hidden": hidden, "next_tokens": payload.next_tokens, "states": payload.states}


def receipt_from(values: Values) -> Receipt:
    """Build a receipt."""
    return Receipt(**{field.name: values[field.name] for field in dataclasses.fields(Receipt)})


def log_entry_from(values: Values) -> LogEntry:
    """Build an entry of the log."""
    return LogEntry(values["created"], values["event"], parse_json(values["detail"]))


def _token_ids(data: bytes) -> TokenIds:
    return np.frombuffer(data, "<i4").astype(np.int32, copy=False)


def _bytes(token_ids: TokenIds) -> bytes:
    return np.ascontiguousarray(token_ids, "<i4").tobytes()


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""
