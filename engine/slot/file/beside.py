"""What may lie beside a slot file under the names of SQLite's own files, and must not be taken for them.

SQLite opens what has such a name, whatever it is: a pipe holds it up for ever, a link leads it to somebody else's file,
and a log that belongs to another database is written over the one that it finds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from engine.errors import SlotFileError
from engine.private_file import UnfitFileError, check_is_file
from engine.slot.file import schema

_SUFFIXES = ("-journal", "-wal", "-shm")
_HEADER_BYTES = 100
_FORMATS = slice(18, 20)
_WITH_JOURNAL = b"\1\1"  # with a log both are 2
_APPLICATION_ID = slice(68, 72)


def companions(path: Path) -> list[Path]:
    """Return what may be beside a database and belongs to it."""
    return [path.with_name(path.name + suffix) for suffix in _SUFFIXES]


def check_beside(path: Path) -> None:
    """Look at the names of SQLite's files beside `path`; raise SlotFileError where one is not a file's."""
    for companion in companions(_followed(path)):
        try:
            check_is_file(companion)
        except UnfitFileError as error:
            text = f"{companion} is in the way of {path.name}: {error.strerror}. Remove it first."
            raise SlotFileError(text) from error
        except OSError:  # it is not there, or SQLite will not find it either
            continue


def put_stray_log_aside(path: Path) -> bool:
    """Rename a write-ahead log that can't be that of the slot file `path`; return whether none is left.

    Slot files have no such log. Where another program gave one to a file, the file says so; where the file doesn't,
    the log is another one's, or none at all.
    """
    path = _followed(path)
    log = path.with_name(f"{path.name}-wal")
    try:
        if log.lstat().st_size == 0:
            return True
        # SQLite doesn't tell. Where this process has the file open already, which nobody does twice, that lock is lost
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return True
    is_ours = header[_APPLICATION_ID] == schema.APPLICATION_ID.to_bytes(4, "big")
    if not is_ours or header[_FORMATS] != _WITH_JOURNAL:
        return True
    with suppress(OSError):
        log.rename(free_name(log))
        return True
    return False


def free_name(path: Path) -> Path:
    """Return a name for what is kept of a damaged file, which no library takes for a conversation."""
    names = (path.with_name(f"{path.name}.damaged{f'-{n}' if n > 1 else ''}") for n in count(1))
    return next(name for name in names if not os.path.lexists(name))


def _followed(path: Path) -> Path:
    """Return where a path leads to: what SQLite keeps is beside that."""
    return Path(os.path.realpath(path))
