"""A look at a file before SQLite may change it, or run anything that is in it.

SQLite changes files by opening them: it takes back unfinished writes, gives up other journal modes, and makes a
database of an empty file. So what is not ours, or is newer than this version, is refused before it is opened; and so
are tables of any other form than ours, for some forms are programs (views, triggers, virtual tables, checks, indices
and columns that are computed), which would run when a record is read or written. The look
is SQLite's own: any other would take away the locks that this process has on the file (see "How To Corrupt An SQLite
Database File", https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from engine.errors import SlotFileError
from engine.slot.file import schema
from engine.slot.file.beside import companions
from engine.slot.file.failures import DamagedError, told

SUFFIX = ".slot"

_MAGIC = b"SQLite format 3\0"
_SIZE = 100
_MOST_STEPS = 10_000  # of SQLite's virtual machine
_APPLICATION_ID = slice(68, 72)


def check_header(path: Path, *, name: str) -> None:
    """Look at the beginning of a file without changing it; sentences call it `name`.

    Raises SlotFileError if it is no slot file, a newer version's, or holds what none does; DamagedError if its
    beginning is lost. An empty file passes if its name is a slot file's: a crash during its creation leaves one.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as looking:
            looking.set_progress_handler(_too_much, _MOST_STEPS)
            (id,) = looking.execute("PRAGMA application_id").fetchone()
            (version,) = looking.execute("PRAGMA user_version").fetchone()
            if id == schema.APPLICATION_ID:
                _check_version(version, name=name)
                # where a write was cut off, the file is not yet what it will be
                if not any(companion.exists() for companion in companions(path)):
                    check_schema(looking.execute(schema.SCHEMA_SQL), version, name=name)
                return
    except sqlite3.Error:
        pass
    _explain(path, name=name)


def check_schema(found: Iterable[tuple[object, ...]], layout: int, *, name: str) -> None:
    """Compare a list of tables, as `schema.SCHEMA_SQL` gives it, with what files of a layout have, text by text.

    Raises SlotFileError where there is something beside them, DamagedError where they differ.
    """
    tables, known = frozenset(found), schema.known_schemas(layout)
    if tables in known:
        return
    names = {(kind, name) for ours in known for kind, name, *_ in ours}
    others = [kind for kind, name, *_ in tables if (kind, name) not in names]
    if all(isinstance(kind, str) for kind in others) and len(tables) > len(names):
        raise SlotFileError(f"{name} holds something that no slot file has ({others[0]}), so it is not opened.")
    raise DamagedError(f"{name} is damaged: its list of tables is not what it should be.")


def _check_version(version: int, *, name: str) -> None:
    newest = schema.layout_version()
    if version > newest:
        raise SlotFileError(
            f"{name} was written by a newer version of Dormouse (layout {version}); "
            f"this one reads up to layout {newest}."
        )
    if version < 1:
        raise DamagedError(f"{name} is damaged: its layout has no number.")


def _too_much() -> bool:
    """Stop a look that takes longer than a list of a dozen tables can."""
    return True


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
