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
            problems = [*slot_file.broken_links(), *_broken_state(slot_file)]
            slot_file.log()  # notes its damage
            return [*slot_file.damage, *slot_file.state_damage, *problems, *_broken_structure(slot_file)]
    except DamagedError as error:
        return [str(error)]


def _broken_state(slot_file: SlotFile) -> Iterator[str]:
    for model in slot_file.models():
        slot_file.segments(model.id)  # notes its damage
        for span in slot_file.rows_index(model.id):
            data = slot_file.read_rows(span.id)
            if data is None or len(data) != span.nbytes:
                yield f"The {span.part} rows {span.lo} to {span.hi - 1} of segment {span.segment} are damaged."
        for checkpoint in slot_file.checkpoints(model.id):
            if slot_file.read_checkpoint(checkpoint.id) is None:
                yield f"Checkpoint {checkpoint.id} is damaged."


def _broken_structure(slot_file: SlotFile) -> Iterator[str]:
    for line in slot_file.integrity_problems():
        yield f"SQLite finds: {line}"
