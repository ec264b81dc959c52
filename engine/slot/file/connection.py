"""The SQLite connection of a slot file: opened with distrust, locked while open, failing in sentences."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import SlotFileError
from engine.slot.file import schema
from engine.slot.file.beside import check_beside, put_stray_log_aside
from engine.slot.file.failures import DamagedError, told
from engine.slot.file.header import check_header, check_schema
from engine.slot.file.schema import Value

_BUSY_SECONDS = 0.5
_TICK = 1_000_000  # steps of SQLite's virtual machine between two looks at a running query
_MAX_TICKS = 200  # some seconds; no honest query comes near
_PATIENCE_SECONDS = 20.0  # for one call that reads a whole file, and
_PATIENCE_BYTES = 4 << 20  # per second of it: no honest disk is slower
_PATIENCE_STEPS = 1_000  # of which each may copy a value of megabytes
_SHRINK_PAGES = 1024  # per transaction

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 512 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 20,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 3,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 1,  # VACUUM INTO attaches its target
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_PRAGMAS = (
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "mmap_size=0",
    "temp_store=MEMORY",
    "secure_delete=FAST",
    "cache_spill=OFF",
    "locking_mode=EXCLUSIVE",
)
_SALVAGE_PRAGMAS = ("writable_schema=ON", "query_only=ON")  # the first reads files shorter than they say
_WRITE_PRAGMAS = ("journal_mode=DELETE", "synchronous=FULL")
_CREATION_PRAGMAS = (f"page_size={schema.PAGE_SIZE}", "auto_vacuum=INCREMENTAL")  # which write, whatever was set before


class Connection:
    """An open slot file, or a database in memory, as SQL. For one thread only.

    Raises `SlotFileError` (`SlotBusyError`, `DamagedError`) and nothing else.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        read_only: bool = False,
        salvage: bool = False,
        wait: bool = True,
        is_new: bool = False,
    ) -> None:
        """Open `path`, None for memory; an empty file is set up as a new one unless `read_only`.

        With `wait`, a file that is open elsewhere is waited for a little.
        `is_new` says that this process has just created the file, whatever its name.
        With `salvage` (and `read_only`) a file that is cut short is opened as far as it goes.
        """
        self.path = path
        self.name = "The temporary conversation" if path is None else str(path)
        self.salvaged = salvage
        self._refusal = f"{self.name} is opened for reading only." if read_only else None
        self._ticks = 0
        with told(self.name):
            self._identity, ignored = _identity(path), ""
            if path is not None and not is_new:
                check_beside(path)
                # a log that is not this file's, and can't be put aside: no log is looked for
                ignored = "" if put_stray_log_aside(path) else "&immutable=1"
                check_header(path, name=self.name)
            if not read_only:
                _check_access(path)
            mode = f"ro{ignored}" if read_only else "rw"
            target = f"{path.absolute().as_uri()}?mode={mode}" if path else ":memory:"
            self._sqlite = sqlite3.connect(target, uri=True, timeout=_BUSY_SECONDS * wait, isolation_level=None)
        try:
            self._configure(read_only=read_only, salvage=salvage)
            self._check_layout()
        except BaseException:
            self._sqlite.close()
            raise

    @property
    def writable(self) -> bool:
        """Whether writing is not refused."""
        return self._refusal is None

    @property
    def layout(self) -> int:
        """Which layout the file has; up to `schema.layout_version()`."""
        return int(self.pragma("user_version"))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file, as far as it was written."""
        return int(self.pragma("page_count")) * int(self.pragma("page_size"))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._sqlite.in_transaction

    def refuse_writes(self, sentence: str) -> None:
        """Answer all further transactions with a `SlotFileError` of this text."""
        self._refusal = sentence

    def close(self) -> None:
        """Close the file and give up its lock; may be called again."""
        with told(self.name):
            self._sqlite.close()

    def query(self, sql: str, parameters: tuple[Value, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement."""
        self._ticks = 0
        with told(self.name):
            yield from self._sqlite.execute(sql, parameters)

    def execute(self, sql: str, parameters: tuple[Value, ...] = ()) -> None:
        """Run a statement."""
        for _ in self.query(sql, parameters):
            pass

    def pragma(self, name: str) -> Any:
        """Return the value of a pragma."""
        return next(self.query(f"PRAGMA {name}"))[0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything done inside at once, or nothing of it."""
        self._check_writable()
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # after some failures SQLite has rolled back by itself
            if self.in_transaction:
                self.execute("ROLLBACK")
            raise

    def shrink(self) -> None:
        """Give free pages back to the file system, in small transactions."""
        self._check_writable()
        free, before = self.pragma("freelist_count"), None
        while free and free != before:
            with told(self.name):
                # execute() would stop after the first page
                self._sqlite.executescript(f"PRAGMA incremental_vacuum({_SHRINK_PAGES})")
            before, free = free, self.pragma("freelist_count")

    def copy_into(self, path: Path, *, name: str) -> None:
        """Write a compact copy into an empty file that sentences call `name`."""
        with told(name), self._patience():
            self._sqlite.execute("VACUUM INTO ?", (str(path),))

    def integrity_problems(self) -> list[str]:
        """Return what SQLite's own check of the whole file finds."""
        with self._patience():
            lines = [str(line) for (line,) in self.query("PRAGMA integrity_check(20)")]
        return [] if lines == ["ok"] else lines

    def is_sound(self, table: str) -> bool:
        """Whether SQLite finds the pages of one table in order, so that writing to it does no harm."""
        try:
            return list(self.query(f'PRAGMA quick_check("{table}")')) == [("ok",)]
        except DamagedError:
            return False

    def _configure(self, *, read_only: bool, salvage: bool) -> None:
        for limit, value in _LIMITS.items():
            self._sqlite.setlimit(limit, value)
        self._sqlite.text_factory = lambda data: data.decode("utf-8", "replace")
        self._sqlite.set_progress_handler(self._tick, _TICK)
        for pragma in _PRAGMAS + _SALVAGE_PRAGMAS * salvage + _WRITE_PRAGMAS * (not read_only):
            self.execute(f"PRAGMA {pragma}")
        if not read_only:
            if self._is_empty():
                for pragma in _CREATION_PRAGMAS:
                    self.execute(f"PRAGMA {pragma}")
            self.execute("BEGIN EXCLUSIVE")  # the lock outlasts the commit
            self.execute("COMMIT")
            if self._is_empty():
                self._set_up()

    def _is_empty(self) -> bool:
        return self.pragma("application_id") == 0 and not list(self.query("SELECT name FROM sqlite_schema"))

    def _set_up(self) -> None:
        with self.transaction():
            for statement in schema.creation():
                self.execute(statement)

    def _check_layout(self) -> None:
        if self.pragma("application_id") != schema.APPLICATION_ID:
            raise SlotFileError(f"{self.name} is not a slot file.")
        if not 1 <= self.layout <= schema.layout_version():
            raise DamagedError(f"{self.name} is damaged: its layout has no number.")
        check_schema(self.query(schema.SCHEMA_SQL), self.layout, name=self.name)
        if self.pragma("auto_vacuum") != 2:
            raise DamagedError(f"{self.name} is damaged: its head contradicts itself.")

    def _check_writable(self) -> None:
        if self._refusal:
            raise SlotFileError(self._refusal)
        try:
            in_place = _identity(self.path) == self._identity
        except OSError:
            in_place = False
        if not in_place:
            raise SlotFileError(f"{self.name} was moved or deleted while it was open.")

    def _tick(self) -> bool:
        self._ticks += 1
        return self._ticks > _MAX_TICKS

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Let a statement take the time that reading the whole file needs, though not for ever.

        A file whose pages are linked in a circle has no end.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS + self.nbytes / _PATIENCE_BYTES
        self._sqlite.set_progress_handler(lambda: time.monotonic() > deadline, _PATIENCE_STEPS)
        try:
            yield
        finally:
            self._sqlite.set_progress_handler(self._tick, _TICK)


def _identity(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return status.st_dev, status.st_ino


def _check_access(path: Path | None) -> None:
    """Raise where SQLite would silently open the file for reading only, or find out at the first commit."""
    effective = os.access in os.supports_effective_ids
    if path and not all(os.access(p, os.W_OK, effective_ids=effective) for p in (path, path.absolute().parent)):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), str(path))
