"""Copying a slot file that can't be written where it is."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject

from app.state.background_work import BackgroundWork
from engine.slot.file.slot_file import SlotFile


class CopyWork(BackgroundWork):
    """Writes a whole copy of a slot file to `target`, and succeeds with that path."""

    def __init__(self, path: Path, target: Path, parent: QObject) -> None:
        def copy(*_: object) -> Path:
            with SlotFile.open(path, read_only=True) as file:
                file.save_copy(target)
            return target

        super().__init__(copy, parent)
