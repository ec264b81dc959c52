"""The list of conversations: the slot files of one folder, with what they are called.

Titles are kept in a cache, because a file that is open, here or in another process, is locked and can't be read.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from engine.errors import DormouseError, SlotBusyError
from engine.paths import cache_folder
from engine.private_file import read_file, write_private
from engine.slot.file.beside import check_beside, companions
from engine.slot.file.failures import DamagedError
from engine.slot.file.slot_file import SlotFile

_CACHE_NAME = "titles.json"
_MOST_BYTES = 64 << 20
_TITLE_LENGTH = 120


Unread = tuple[str, os.stat_result]
"""The path of a file, and what it is like."""


@dataclass(frozen=True)
class LibraryEntry:
    """A conversation in the library; `modified` is in seconds since 1970."""

    path: str
    title: str
    modified: float
    nbytes: int
    damaged: bool = False


@dataclass(frozen=True)
class Known:
    """What a file was found to be when it had this time and size."""

    title: str
    mtime_ns: int
    nbytes: int
    damaged: bool = False

    @property
    def makes_sense(self) -> bool:
        """Whether it is of the types that are written."""
        types = [type(value) for value in asdict(self).values()]
        return types == [str, int, int, bool] and len(self.title) <= _TITLE_LENGTH

    def fits(self, status: os.stat_result) -> bool:
        return (self.mtime_ns, self.nbytes) == (status.st_mtime_ns, status.st_size)


class Library:
    """The slot files of a folder. Errors are `DormouseError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache = cache_folder() / _CACHE_NAME
        self._known = _read_cache(self._cache)
        self._noted: set[str] = set()
        """Files that the application has had open and told the title of: their lock is not tried."""

    @property
    def folder(self) -> Path:
        """Where the slot files are."""
        return self._folder

    def title(self, file_name: str) -> str:
        """Return what a conversation is called, as far as that is known; else the name of its file."""
        known = self._known.get(str(self._folder / file_name))
        return known.title if known else Path(file_name).stem

    def entries(self) -> list[LibraryEntry]:
        """Return all conversations, the one changed last first; no file is read for it.

        One whose title is not known is called by its name until somebody has looked into it: see `unread`.
        """
        return [self._entry(path, status) for path, status in self._found()]

    def unread(self) -> list[Unread]:
        """Return the files that `look_into` would tell more of, the one changed last first."""
        return [
            (path, status)
            for path, status in self._found()
            if path not in self._noted and not ((known := self._known.get(path)) and known.fits(status))
        ]

    def learn(self, found: Mapping[str, Known]) -> None:
        """Remember what files were found to be, unless the application has opened them meanwhile."""
        news = {path: known for path, known in found.items() if path not in self._noted}
        if news:
            self._known |= news
            self._save_cache()

    def new_path(self) -> Path:
        """Return the path of a file that does not exist, named by the date."""
        while True:
            path = self._folder / f"{datetime.now():%Y-%m-%d %H.%M} {secrets.token_hex(2)}.slot"
            if not path.exists():
                return path

    def note_title(self, path: str | Path, title: str) -> None:
        """Remember how a conversation that the application has open is called: by its first words, shortened."""
        path = str(path)
        title = _shortened(title)
        self._noted.add(path)
        known = self._known.get(path)
        if title and (known is None or known.title != title):
            self._known[path] = Known(title, 0, 0)  # of no time: looked into again when it sleeps
            self._save_cache()

    def remove(self, path: str | Path) -> None:
        """Delete a conversation, and what is known of it. It must not be open."""
        target = Path(path)
        try:
            target.unlink(missing_ok=True)
            for companion in companions(target):
                companion.unlink(missing_ok=True)
        except OSError as error:
            raise DormouseError(f"{target} can't be deleted: {error.strerror}.") from error
        self._noted.discard(str(path))
        if self._known.pop(str(path), None):
            self._save_cache()

    def _found(self) -> list[Unread]:
        return sorted(self._scan(), key=lambda item: item[1].st_mtime_ns, reverse=True)

    def _scan(self) -> list[tuple[str, os.stat_result]]:
        found = []
        try:
            with os.scandir(self._folder) as items:
                for item in items:
                    # a file may vanish while we look, or be one that must not be looked at
                    with suppress(OSError):
                        if item.name.endswith(".slot") and not item.name.startswith(".") and item.is_file():
                            found.append((item.path, item.stat()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DormouseError(f"The conversations in {self._folder} can't be listed: {error.strerror}.") from error
        return found

    def _entry(self, path: str, status: os.stat_result) -> LibraryEntry:
        known = self._known.get(path)
        title = known.title if known else Path(path).stem
        damaged = known is not None and known.damaged
        return LibraryEntry(path, title, status.st_mtime, status.st_size, damaged)

    def _save_cache(self) -> None:
        kept = {path: asdict(known) for path, known in self._known.items() if os.path.exists(path)}
        # without the cache, titles are read again
        with suppress(OSError):
            write_private(self._cache, json.dumps(kept))


def look_into(path: str, status: os.stat_result) -> Known | None:
    """Return what a file is; None where that can't be told now. Takes as long as it takes, in any thread."""
    title, damaged = Path(path).stem, False
    try:
        if status.st_size == 0 or _is_locked(path):
            return None
        with SlotFile.open(path, read_only=True) as file:
            damaged = bool(file.damage)
            texts = (m.text for m in file.messages() if m.role == "user" and not m.damaged)
            title = next(filter(None, map(_shortened, texts)), title)
    except DamagedError:
        damaged = True
    except SlotBusyError:
        return None
    except DormouseError:
        pass  # not ours, newer than we are, or to be healed by opening it: its name must do
    except Exception:
        damaged = True  # what a slot file can't hold
    return Known(title, status.st_mtime_ns, status.st_size, damaged)


def _read_cache(path: Path) -> dict[str, Known]:
    try:
        items = json.loads(read_file(path, limit=_MOST_BYTES)).items()
        found = {name: Known(**known) for name, known in items}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: known for name, known in found.items() if known.makes_sense}


def _is_locked(path: str) -> bool:
    """Tell whether somebody has a database open, at once; `SlotFile` would wait for the lock for a while.

    Raises SlotFileError where something is beside it that SQLite must not open.

    SQLite is asked because it alone may touch the file: closing a file descriptor gives up the locks that this
    process holds on the file (https://sqlite.org/howtocorrupt.html, section 2.2).
    """
    check_beside(Path(path))
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
    return False


def _shortened(text: str) -> str:
    words = " ".join(text[: 10 * _TITLE_LENGTH].split())
    return words if len(words) <= _TITLE_LENGTH else f"{words[: _TITLE_LENGTH - 1].rstrip()}…"
