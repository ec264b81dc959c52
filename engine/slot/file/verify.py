"""The thorough check of a slot file: every checksum, digest and link."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.slot.file.failures import DamagedError
from engine.slot.file.slot_file import SlotFile


def verify(path: Path | str) -> list[str]:
    """Return what is wrong with a slot file, in sentences; only what a crash left unfinished in it is taken back.

    Raises `SlotFileError` if it is no slot file or can't be opened at all.
    """
    try:
        with SlotFile.open(path, read_only=True) as slot_file:
            problems = [*_broken_links(slot_file), *_broken_state(slot_file)]
            return [*slot_file.damage, *slot_file.state_damage, *problems, *_broken_structure(slot_file)]
    except DamagedError as error:
        return [str(error)]


def _broken_links(slot_file: SlotFile) -> Iterator[str]:
    messages = {message.id for message in slot_file.messages()}
    models = {model.id for model in slot_file.models()}
    leaf = slot_file.leaf()
    if leaf is not None and leaf not in messages:
        yield "The message at which the conversation was left is missing."
    if any(content.message not in messages for content in slot_file.contents()):
        yield "There are token ids of a message that is missing."
    if any(r.message not in messages or r.model not in models for r in slot_file.receipts()):
        yield "There is a receipt of a message or model that is missing."
    slot_file.log()  # notes its damage


def _broken_state(slot_file: SlotFile) -> Iterator[str]:
    messages = {message.id for message in slot_file.messages()}
    for model in slot_file.models():
        slot_file.segments(model.id)  # notes its damage
        for span in slot_file.rows_index(model.id):
            data = slot_file.read_rows(span.id)
            if data is None or len(data) != span.nbytes:
                yield f"The {span.part} rows {span.lo} to {span.hi - 1} of segment {span.segment} are damaged."
        for checkpoint in slot_file.checkpoints(model.id):
            if checkpoint.message is not None and checkpoint.message not in messages:
                yield f"Checkpoint {checkpoint.id} belongs to a message that is missing."
            if slot_file.read_checkpoint(checkpoint.id) is None:
                yield f"Checkpoint {checkpoint.id} is damaged."


def _broken_structure(slot_file: SlotFile) -> Iterator[str]:
    for line in slot_file.integrity_problems():
        yield f"SQLite finds: {line}"
