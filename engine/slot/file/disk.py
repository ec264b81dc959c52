"""What slot files ask of the file system, beside SQLite."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from engine.errors import SlotFileError
from engine.slot.file.failures import told

_RESERVE = 32 << 20  # bytes of free space that state leaves for words


def require_space(folder: Path, nbytes: int, *, name: str) -> None:
    """Raise SlotFileError unless a folder's disk has room for so many bytes, and some more for people's words."""
    with told(name):
        free = shutil.disk_usage(folder).free
    if free < nbytes + _RESERVE:
        raise SlotFileError(
            f"{name} needs {nbytes / 1e6:,.0f} MB on the disk, which has {free / 1e6:,.0f} MB left; make room first."
        )


def temporary_beside(path: Path) -> Path:
    """Return a name for what is to become the slot file `path`: in its folder, and in no list of conversations."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.slot")


def create_private(path: Path) -> None:
    """Create an empty file of mode 0600; raise OSError if there is one of this name."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows can't, and need not, sync a folder
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
