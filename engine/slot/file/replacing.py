"""Putting one file in the place of another that may be a slot file, with journals of its own beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from engine.errors import SlotBusyError

_JOURNALS = ("-journal", "-wal", "-shm")
_BUSY_SECONDS = 0.5


@contextmanager
def taking_the_place_of(path: Path) -> Iterator[None]:
    """Keep everybody else out of the file at `path`, if there is one, while what shall replace it is made.

    Raises SlotBusyError if somebody has it open. The lock is SQLite's: looking at a file in any other way would give up
    those that this process has on it.
    """
    with closing(_locked(path)) if path.is_file() else nullcontext():
        yield


def move_journals(path: Path, to: Path | None) -> None:
    """Have a file's journals go where it goes, or go altogether: they would be rolled into what takes its place."""
    for suffix in _JOURNALS:
        journal = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            if to is None:
                journal.unlink()
            else:
                journal.replace(to.with_name(to.name + suffix))


def _locked(path: Path) -> sqlite3.Connection:
    """Return a connection that has the file for itself; one that does nothing if it is no database."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
    )
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            connection.close()
            raise SlotBusyError(
                f"{path} is open in another Dormouse window or process; close it there first."
            ) from None
    except sqlite3.DatabaseError:
        pass  # nothing that anybody could have open
    return connection
