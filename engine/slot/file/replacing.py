"""Putting a new file in the place of another one, with which everything goes that SQLite keeps beside it.

What an interrupted write left beside a file is written into whatever bears the file's name when SQLite opens that next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import SlotBusyError
from engine.slot.file.beside import check_beside, companions
from engine.slot.file.disk import sync

_BUSY_SECONDS = 0.5  # somebody may be looking at it just now


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Have the file `path`, if there is one, to oneself. What a crash left unfinished in it is taken back.

    Raises SlotBusyError if it is open elsewhere, in this process too, and SlotFileError if SQLite must not open what is
    beside it. SQLite is asked because it alone may touch the file: closing a file opened in any other way gives up all
    locks that this process has on it.
    """
    holding: sqlite3.Connection | None = None
    check_beside(path)
    if path.is_file():
        # what SQLite can't open, or read, is no slot file that anybody can have open
        with suppress(sqlite3.Error):
            uri = f"{path.absolute().as_uri()}?mode=rw"
            holding = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        if holding is not None:
            _lock(holding, path)
        yield
    finally:
        if holding is not None:
            holding.close()


def put_in_place(new: Path, path: Path) -> None:
    """Give a file that has reached the disk the name `path`, in place of what has it now; raises OSError."""
    if path.is_file() or not path.exists():
        left = [companion for companion in companions(path) if companion.is_file()]
        for companion in left:
            companion.unlink()
        if left:
            sync(path.parent)  # they must be gone before the new file is there
    new.replace(path)
    sync(path.parent)


def _lock(holding: sqlite3.Connection, path: Path) -> None:
    try:
        holding.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SlotBusyError(
                f"{path} is open, here or in another Dormouse, so it can't be replaced: choose another name, "
                "or close it first."
            ) from error
