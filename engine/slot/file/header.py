"""A look at a file before SQLite may change it.

SQLite changes files by opening them: it takes back unfinished writes, gives up other journal modes, and makes a
database of an empty file. So what is not ours, or is newer than this version, is refused before it is opened. The look
is SQLite's own: any other would take away the locks that this process has on the file (see "How To Corrupt An SQLite
Database File", https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from engine.errors import SlotFileError
from engine.slot.file import schema
from engine.slot.file.failures import DamagedError, told

SUFFIX = ".slot"

_MAGIC = b"SQLite format 3\0"
_SIZE = 100
_APPLICATION_ID = slice(68, 72)


def check_header(path: Path, *, name: str) -> None:
    """Look at the beginning of a file without changing it; sentences call it `name`.

    Raises SlotFileError if it is no slot file or a newer version's, DamagedError if its beginning is lost. An empty
    file passes if its name is a slot file's: a crash during its creation leaves one.
    """
    version = _layout(path)
    if version is None:
        _explain(path, name=name)
        return
    newest = schema.layout_version()
    if version > newest:
        raise SlotFileError(
            f"{name} was written by a newer version of Dormouse (layout {version}); "
            f"this one reads up to layout {newest}."
        )


def _layout(path: Path) -> int | None:
    """Return the layout of a slot file, None for what doesn't look like one."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as looking:
            (id,) = looking.execute("PRAGMA application_id").fetchone()
            (version,) = looking.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return None
    return int(version) if id == schema.APPLICATION_ID else None


def _explain(path: Path, *, name: str) -> None:
    """Raise what is wrong with a file that is no sound database of ours, unless opening it will tell."""
    with told(name), path.open("rb") as file:
        head = file.read(_SIZE)
    if not head:
        if path.suffix != SUFFIX:
            raise SlotFileError(f"{name} is not a slot file: it is empty.")
    elif not any(head):
        raise DamagedError(f"{name} is damaged: its beginning is gone, and without that nothing in it can be read.")
    elif not head.startswith(_MAGIC[: len(head)]):
        raise SlotFileError(f"{name} is not a slot file.")
    elif len(head) < _SIZE:
        raise DamagedError(f"{name} is damaged: it is cut short, and nothing is left that could be read.")
    elif int.from_bytes(head[_APPLICATION_ID], "big") != schema.APPLICATION_ID:
        raise SlotFileError(f"{name} is not a slot file.")
