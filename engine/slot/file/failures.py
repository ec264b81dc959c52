"""What can go wrong with a slot file on disk, each in its own sentence."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import SlotBusyError, SlotFileError


class DamagedError(SlotFileError):
    """A slot file, or the part of it that was asked for, can't be read."""


class UnfinishedError(SlotFileError):
    """A slot file was being written when its process ended: opening it for writing takes the unfinished part back."""


_READ_ONLY = "{name} can't be written: the file or its folder is read-only."
_DISK_FULL = "{name} could not be saved: the disk is full."
_DENIED = "{name} can't be opened: access is denied."

_SQLITE_SENTENCES = {
    sqlite3.SQLITE_FULL: _DISK_FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_READONLY_DBMOVED: "{name} was moved or deleted while it was open.",
    sqlite3.SQLITE_CANTOPEN: "{name} can't be opened: it or its folder is missing, or access is denied.",
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_IOERR: "{name} can't be read or written: the disk reports an error.",
    sqlite3.SQLITE_NOTADB: "{name} is not a slot file.",
}

_DAMAGE_SENTENCES = {
    sqlite3.SQLITE_CORRUPT: "{name} is damaged.",
    sqlite3.SQLITE_ERROR: "{name} is damaged: parts that every slot file has are missing.",
    sqlite3.SQLITE_TOOBIG: "{name} is damaged: it claims to hold an impossibly large value.",
    sqlite3.SQLITE_INTERRUPT: "{name} is damaged: reading it takes forever.",
}

_OS_SENTENCES = {
    errno.ENOENT: "{name} does not exist.",
    errno.EEXIST: "{name} exists already.",
    errno.EISDIR: "{name} is not a file.",
    errno.ENOTDIR: "{name} can't exist: a part of its path is not a folder.",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _READ_ONLY,
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
}


@contextmanager
def told(name: str) -> Iterator[None]:
    """Turn whatever SQLite and the file system raise into a `SlotFileError` about `name`."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(name, error) from error
    except OSError as error:
        sentence = _OS_SENTENCES.get(error.errno or 0, "{name} can't be used: {error}.")
        raise SlotFileError(sentence.format(name=name, error=error.strerror)) from error
    except MemoryError as error:
        raise SlotFileError(f"There is not enough memory to read {name}.") from error
    except (OverflowError, UnicodeDecodeError) as error:
        raise DamagedError(f"{name} is damaged: it holds what can't be.") from error


def _explain(name: str, error: sqlite3.Error) -> SlotFileError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_INTERNAL)
    primary = code & 0xFF
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return SlotBusyError(f"{name} is open in another Dormouse window or process; close it there first.")
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return UnfinishedError(
            f"{name} was being written when Dormouse or the computer stopped; open it once for writing to repair it."
        )
    if primary in _DAMAGE_SENTENCES:
        return DamagedError(_DAMAGE_SENTENCES[primary].format(name=name))
    sentence = _SQLITE_SENTENCES.get(code) or _SQLITE_SENTENCES.get(primary) or "{name} can't be used: {error}."
    return SlotFileError(sentence.format(name=name, error=error))
