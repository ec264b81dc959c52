"""Opening a conversation: its file, healed where it needs it, and all that is told of it."""

from __future__ import annotations

import os
from pathlib import Path

from engine import events
from engine.conversation import known_models, read_transcript
from engine.slot.file.repair import open_repaired
from engine.slot.file.slot_file import SlotFile
from engine.slot.records import ModelIdentity, Receipt


def open_file(path: Path | None) -> SlotFile:
    """Open a slot file, or create it; None gives one that is never on disk. Raises SlotFileError."""
    if path is None:
        return SlotFile.create(":memory:")
    return open_repaired(path) if os.path.exists(path) else SlotFile.create(path)


def read_opened(file: SlotFile, job: int, conversation: int) -> events.Opened:
    """Return the event that tells of an open file; what of it can't be read beside its words is told as damage."""
    transcript, lost = read_transcript(file), []
    receipts: tuple[Receipt, ...] = ()
    models: tuple[ModelIdentity, ...] = ()
    try:
        receipts, models = tuple(file.receipts()), known_models(file)
    except Exception as error:  # the words can be read all the same
        lost.append(f"What earlier turns cost can't be read ({type(error).__name__}: {error}).")
    return events.Opened(
        job,
        conversation,
        path=file.path,
        transcript=transcript,
        receipts=receipts,
        models=models,
        damage=(*file.notes, *file.damage, *file.state_damage, *lost),
        is_repairable=file.has_losses,
    )
