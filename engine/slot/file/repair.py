"""Bringing what is sound in a damaged slot file into a fresh one.

Text is taken as far as it can be read, and marked where it may be wrong; of the state, what passes its checksum. The
damaged file is kept beside the fresh one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.errors import SlotFileError
from engine.slot.file.beside import free_name
from engine.slot.file.disk import create_private, require_space, sync, temporary_beside
from engine.slot.file.failures import DamagedError, told
from engine.slot.file.replacing import put_in_place
from engine.slot.file.slot_file import SlotFile
from engine.slot.records import LogEntry

_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Repaired:
    """What a repair found, in sentences, and where the damaged file is now."""

    damage: tuple[str, ...]
    kept: Path

    def __str__(self) -> str:
        what = " ".join(self.damage)
        return f"{what} What was sound is in a fresh file; the damaged one is kept as {self.kept.name}."


def repair(path: Path | str) -> Repaired | None:
    """Repair a slot file that nobody has open; return None if there is nothing to repair.

    Raises SlotFileError where that can't be done; the file is then as it was.
    """
    path = Path(path)
    with SlotFile.open(path) as damaged:
        return repair_open(damaged)


def open_repaired(path: Path | str) -> SlotFile:
    """Open a slot file to go on in it, repaired where that costs no text that can be read; `notes` tell of it.

    What is damaged in the transcript itself is left to the person: see `repair`. Raises SlotFileError.
    """
    slot_file = SlotFile.open(path)
    try:
        if not slot_file.look_over() or slot_file.has_losses or not slot_file.writable:
            return slot_file
        try:
            repaired = repair_open(slot_file)
        except SlotFileError as error:
            slot_file.notes = [*slot_file.notes, str(error)]
            return slot_file
        slot_file.close()  # which deletes a journal of that name: the fresh file must not have one yet
        fresh = SlotFile.open(path)
    except BaseException:
        slot_file.close()
        raise
    fresh.notes = [*slot_file.notes, str(repaired)]
    return fresh


def repair_open(damaged: SlotFile) -> Repaired | None:
    """Put a repaired file in the place of an open one, which goes on being the damaged one; see `repair`."""
    path = damaged.path
    if path is None:
        raise SlotFileError("A temporary conversation can't be repaired: save it first.")
    require_space(path.parent, path.stat().st_size, name=str(path))
    temporary = temporary_beside(path)
    with told(str(path)):
        create_private(temporary)
        try:
            with SlotFile.open(temporary) as fresh:
                damaged.look_over()
                _copy(damaged, fresh)
                damage = (*damaged.damage, *damaged.state_damage, *damaged.broken_links())
                if not _is_sound(damaged):
                    damage = (*damage, "The file is damaged in its structure.")
                if not damage:
                    temporary.unlink()
                    return None
                kept = free_name(path)
                fresh.append_log(LogEntry(time.time(), "repair", {"damage": list(damage), "kept": kept.name}))
            sync(temporary)
            _keep(path, kept)
            put_in_place(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return Repaired(damage, kept)


def _is_sound(slot_file: SlotFile) -> bool:
    try:
        return not slot_file.integrity_problems()
    except DamagedError:
        return False


def _copy(damaged: SlotFile, fresh: SlotFile) -> None:
    """Copy all records that are sound, and the text of the others, under the same ids."""
    with fresh.transaction():
        messages = {message.id for message in damaged.messages()}
        fresh.copy_messages(damaged.messages())
        for key, value in damaged.manifest().items():
            fresh.set_manifest(key, value)
        if damaged.leaf() not in messages:
            fresh.set_leaf(max(messages, default=None))
        models = {model.id for model in damaged.models()}
        fresh.copy_records(damaged, "model", lambda values: values["id"] in models)
        fresh.copy_records(damaged, "content", lambda values: values["message"] in messages)
        fresh.copy_records(damaged, "log", lambda values: True)
        fresh.copy_records(
            damaged, "receipt", lambda values: values["message"] in messages and values["model"] in models
        )
        for model in models:
            for segment in damaged.segments(model).values():
                fresh.put_segment(segment)
    _copy_state(damaged, fresh, models, messages)


def _copy_state(damaged: SlotFile, fresh: SlotFile, models: set[int], messages: set[int]) -> None:
    """Copy rows and checkpoints in transactions of a size that the disk can bear."""
    copies = _state_copies(damaged, fresh, models, messages)
    left = True
    while left:
        nbytes = 0
        with fresh.transaction():
            for nbytes_of_one in copies:
                nbytes += nbytes_of_one
                if nbytes > _BATCH_BYTES:
                    break
            else:
                left = False


def _state_copies(damaged: SlotFile, fresh: SlotFile, models: set[int], messages: set[int]) -> Iterator[int]:
    """Copy one after the other; yield the bytes of each."""
    marks = damaged.marks()
    for model in sorted(models):
        for stored in damaged.rows_index(model):
            data = damaged.read_rows(stored.id)
            if data is not None and len(data) == stored.nbytes:
                fresh.put_rows(stored, data, mark=marks.get(stored.id))
                yield len(data)
        for checkpoint in damaged.checkpoints(model):
            payload = damaged.read_checkpoint(checkpoint.id)
            if payload is not None and (checkpoint.message is None or checkpoint.message in messages):
                fresh.put_checkpoint(checkpoint, payload, mark=marks.get(checkpoint.id))
                yield payload.nbytes


def _keep(path: Path, kept: Path) -> None:
    """Give a file a second name; where the file system has no such thing, a copy."""
    try:
        os.link(path, kept)
    except OSError:
        with suppress(OSError):
            kept.unlink(missing_ok=True)
        create_private(kept)
        shutil.copyfile(path, kept)
        sync(kept)
