"""A small conversation with state of two models, written to a slot file and read back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.slot.file.slot_file import SlotFile
from engine.slot.records import (
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


@dataclass(frozen=True)
class Contents:
    """Everything that is read from a slot file, by id, comparable."""

    messages: dict[int, Message]
    leaf: int | None
    models: dict[int, ModelIdentity]
    state: dict[tuple[str, int], Any]
    others: list[Any]


def read_all(slot_file: SlotFile) -> Contents:
    state: dict[tuple[str, int], Any] = {}
    models = {model.id: model for model in slot_file.models()}
    for model in models:
        for segment in slot_file.segments(model).values():
            state["segment", segment.id] = segment, segment.token_ids.tobytes()
        for span in slot_file.rows_index(model):
            if (data := slot_file.read_rows(span.id)) is not None:
                state["rows", span.id] = span, data
        for checkpoint in slot_file.checkpoints(model):
            if (payload := slot_file.read_checkpoint(checkpoint.id)) is not None:
                columns = payload.hidden.tobytes(), payload.next_tokens, payload.states
                state["checkpoint", checkpoint.id] = checkpoint, columns
    contents = [(content.message, content.tokenizer, content.token_ids.tolist()) for content in slot_file.contents()]
    return Contents(
        messages={message.id: message for message in slot_file.messages()},
        leaf=slot_file.leaf(),
        models=models,
        state=state,
        others=[*contents, *slot_file.receipts(), *slot_file.log()],
    )


def write_conversation(path: Path) -> None:
    """Store a system message, eight turns and the state of two models."""
    random = np.random.default_rng(7)
    with SlotFile.create(path) as slot_file:
        last = slot_file.add_message(None, "system", "Be brief. " * 100, created=0).id
        for turn in range(8):
            user, reply = slot_file.begin_turn(last, f"{turn} wörds, words. " * 150, created=turn)
            assert user is not None
            slot_file.update_reply(reply.id, f"{turn} Antwort 🐭 " * 150, "stop")
            slot_file.put_content(Content(reply.id, "tok", random.integers(0, 9999, 300).astype(np.int32)))
            slot_file.put_receipt(Receipt(reply.id, 1, 10, turn, "live", "none", 1.5, 20, 2.5, "numpy", turn))
            slot_file.append_log(LogEntry(turn, "checkpoint", {"n": turn}))
            last = reply.id
        for name in ("one", "two"):
            write_state(slot_file, name, random)


def sample_model(name: str) -> ModelIdentity:
    return ModelIdentity(0, name, "llama", name, f"/{name}.gguf", "tok", "tmpl", "f16", "numpy", {"n_layer": 2})


def write_state(slot_file: SlotFile, name: str, random: np.random.Generator) -> None:
    """Store four segments of 100 tokens, forking at 80, each with two spans of rows and a checkpoint."""
    model = slot_file.put_model(sample_model(name))
    parent = None
    for turn in range(4):
        segment = Segment.follow(
            slot_file.next_state_id(),
            model=model.id,
            parent=parent,
            length=80 if parent else 0,
            token_ids=random.integers(0, 9999, 100).astype(np.int32),
        )
        slot_file.put_segment(segment)
        for lo in (0, 50):
            span = StoredRows(slot_file.next_state_id(), segment.id, "attention", lo, lo + 50, nbytes=9000)
            slot_file.put_rows(span, random.bytes(9000))
        hidden = random.normal(size=64).astype(np.float32)
        payload = CheckpointPayload(hidden, random.bytes(100), random.bytes(3000) if turn % 2 else None)
        checkpoint = Checkpoint(
            slot_file.next_state_id(), segment.id, 100, None, "message_end", turn, bool(turn % 2), payload.nbytes
        )
        slot_file.put_checkpoint(checkpoint, payload)
        parent = segment
