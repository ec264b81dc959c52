"""Which slot files of a folder begin as a prompt does: an index of chained digests, in the cache.

Where runs of tokens end, a slot file knows the digest of everything before. A prompt is followed from digest to digest;
its ids are hashed, those of the files are not read. All this can be computed again: what can't be used is thrown away.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from engine.arrays import TokenIds
from engine.errors import SlotBusyError, SlotFileError
from engine.private_file import UnfitFileError, check_is_file
from engine.slot.file.beside import companions
from engine.slot.file.disk import create_private
from engine.slot.file.slot_file import SlotFile
from engine.slot.records import ROOT_DIGEST, ModelIdentity, Segment, chain_digest

_LAYOUT = 2
_PATIENCE = 0.5  # seconds for reading files that changed, at each update; the others follow at the next
_CREATION = """
CREATE TABLE file (path TEXT PRIMARY KEY, mtime_ns INTEGER, nbytes INTEGER);
CREATE TABLE step (path TEXT, model TEXT, base BLOB, length INTEGER, digest BLOB);
CREATE INDEX step_by_base ON step (model, base, length);
CREATE INDEX step_by_path ON step (path);
"""


@dataclass(frozen=True)
class Step:
    """From the digest `base` the next `length` ids lead to `digest`, for a model's state (`state_key`)."""

    model: str
    base: bytes
    length: int
    digest: bytes


def state_key(model: ModelIdentity) -> str:
    """Return what must be equal for one model identity to use the state of another."""
    return f"{model.fingerprint} {model.kv_type}"


def read_steps(file: SlotFile) -> list[Step]:
    """Return the steps of the segments in a slot file whose state may be given to others: see `marks`.

    Only whether there are marks is looked at; whether they hold is found out when something is taken.
    """
    marks = file.marks()
    steps: list[Step] = []
    for model in file.models():
        marked = {stored.segment for stored in file.rows_index(model.id) if stored.id in marks}
        marked |= {checkpoint.segment for checkpoint in file.checkpoints(model.id) if checkpoint.id in marks}
        steps += _steps(state_key(model), file.segments(model.id), marked)
    return steps


def _steps(key: str, segments: dict[int, Segment], marked: Set[int]) -> Iterator[Step]:
    """Yield the steps to the marked segments."""
    leading = set(marked)
    for segment in reversed(segments.values()):
        if segment.id in leading and segment.parent is not None:
            leading.add(segment.parent)
    for segment in segments.values():
        if segment.id not in leading:
            continue
        yield Step(key, segment.base, len(segment.token_ids), segment.digest)
        parent = None if segment.parent is None else segments[segment.parent]
        if parent is not None and segment.parent_length < len(parent.token_ids):
            yield Step(key, parent.base, segment.parent_length, segment.base)


class PrefixIndex:
    """The index of one folder, kept in a file, or in memory for None. For one thread only, except `forget`.

    What goes wrong with its file, or with those that it reads, is never raised.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._sqlite: sqlite3.Connection | None = None
        self._using = Lock()  # the connection
        self._gone: deque[str] = deque()  # files to forget

    def close(self) -> None:
        """Let go of the file."""
        with self._using:
            self._close()

    def forget(self, path: Path) -> None:
        """Have nothing be known any more of a file that was deleted. May be called from any thread, and waits for none.

        Where another thread is at the index, it is that one that forgets the file, at the end of what it does.
        """
        if _is_text(str(path)):
            self._gone.append(str(path))
            self._forget_gone()

    def update(self, folder: Path, *, but: Iterable[Path]) -> None:
        """Read the slot files of the folder that are new or changed, except those `but`."""
        with self._forgiving() as db:
            known = {path: (mtime, nbytes) for path, mtime, nbytes in db.execute("SELECT * FROM file")}
            found = dict(_scan(folder))
            for path in known.keys() - {str(path) for path in found}:
                _forget(db, path)
            deadline = time.monotonic() + _PATIENCE
            for path, stamp in sorted(found.items(), key=lambda item: item[1], reverse=True):
                if path not in set(but) and known.get(str(path)) != stamp and time.monotonic() < deadline:
                    self._read(db, path, stamp)

    def put(self, path: Path, steps: Iterable[Step]) -> None:
        """Replace what is known of a file that is open; once it is closed, it is read again."""
        if _is_text(str(path)):
            with self._forgiving() as db:
                self._replace(db, path, (0, 0), steps)

    def longest(self, model: ModelIdentity, prompt: TokenIds) -> list[Path]:
        """Return the files that begin as the prompt does, the longest beginning first."""
        lengths: dict[str, int] = defaultdict(int)
        with self._forgiving() as db:
            todo, key = {ROOT_DIGEST: 0}, state_key(model)
            while todo:
                base, start = todo.popitem()
                rows = db.execute("SELECT DISTINCT length FROM step WHERE model = ? AND base = ?", (key, base))
                for (length,) in rows.fetchall():
                    digest = chain_digest(base, prompt[start : start + length])
                    sql = "SELECT path FROM step WHERE model = ? AND base = ? AND length = ? AND digest = ?"
                    paths = [path for (path,) in db.execute(sql, (key, base, length, digest))]
                    for path in paths:
                        lengths[path] = max(lengths[path], start + length)
                    if paths and length:
                        todo[digest] = start + length
        return [Path(path) for path in sorted(lengths, key=lambda path: (-lengths[path], path))]

    def _read(self, db: sqlite3.Connection, path: Path, stamp: tuple[int, int]) -> None:
        try:
            with SlotFile.open(path, read_only=True, wait=False) as file:
                self._replace(db, path, stamp, read_steps(file))
        except SlotBusyError:
            pass  # open elsewhere
        except (SlotFileError, ArithmeticError, LookupError, TypeError, ValueError):
            self._replace(db, path, stamp, [])  # whatever it holds, it is of no use here

    def _replace(self, db: sqlite3.Connection, path: Path, stamp: tuple[int, int], steps: Iterable[Step]) -> None:
        _forget(db, str(path))
        db.execute("INSERT INTO file VALUES (?, ?, ?)", (str(path), *stamp))
        rows = ((str(path), step.model, step.base, step.length, step.digest) for step in steps)
        db.executemany("INSERT INTO step VALUES (?, ?, ?, ?, ?)", rows)

    def _forget_gone(self) -> None:
        """Forget what is to be forgotten, unless another thread is at the index: it does this when it is done."""
        n_before = 0
        while len(self._gone) not in (0, n_before) and self._using.acquire(blocking=False):
            n_before = len(self._gone)  # what can't be forgotten now is forgotten with the next use
            is_open = self._sqlite is not None
            try:
                with self._transaction():
                    pass
            finally:
                if not is_open:
                    self._close()
                self._using.release()

    @contextmanager
    def _forgiving(self) -> Iterator[sqlite3.Connection]:
        """Give the database; what is done with it is done as a whole or, where that can't be, not at all."""
        self._forget_gone()  # what could not be forgotten before
        with self._using, self._transaction() as db:
            yield db
        self._forget_gone()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._sqlite is None:
            self._sqlite = _open(self._path)
        try:
            yield self._sqlite
            gone = tuple(self._gone)  # also what was deleted meanwhile, and may have been read just before
            for path in gone:
                _forget(self._sqlite, path)
            self._sqlite.commit()
            for path in gone:
                self._gone.remove(path)
        except sqlite3.OperationalError:  # another process has it, or the disk is full
            self._close()
        except sqlite3.Error:
            self._close()
            _remove(self._path)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
            self._sqlite = None


def _open(path: Path | None) -> sqlite3.Connection:
    """Open the index; anew if it is damaged, in memory if there is no place for it."""
    for place in (path, path, None):
        if place is not None and not _make_room(place):
            continue
        try:
            db = sqlite3.connect(place or ":memory:", timeout=0.2, check_same_thread=False)
            db.execute("PRAGMA secure_delete=ON")  # what is forgotten is not in the file any more
            (layout,) = db.execute("PRAGMA user_version").fetchone()
            if layout == 0:
                db.executescript(f"BEGIN; {_CREATION} PRAGMA user_version={_LAYOUT}; COMMIT")
            if layout in (0, _LAYOUT):
                return db
            db.close()
        except sqlite3.Error:
            pass
        _remove(place)
    raise AssertionError("there is always memory")


def _make_room(path: Path) -> bool:
    """Create a file unless it is there; take away what is in its place, or in that of what SQLite has beside it.

    Return whether SQLite may open it.
    """
    for name in (path, *companions(path)):
        try:
            check_is_file(name)
        except UnfitFileError:
            try:
                name.unlink()
            except OSError:
                return False
        except OSError:
            pass
    with suppress(OSError):
        create_private(path)
    return True


def _remove(path: Path | None) -> None:
    """Take away the file, and what SQLite would do to the next one of its name."""
    if path is not None:
        for name in (path, *companions(path)):
            with suppress(OSError):
                name.unlink()


def _is_text(path: str) -> bool:
    """Tell whether a path can be put into the index: the system's names may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _forget(db: sqlite3.Connection, path: str) -> None:
    db.execute("DELETE FROM file WHERE path = ?", (path,))
    db.execute("DELETE FROM step WHERE path = ?", (path,))


def _scan(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield the slot files of a folder, each with its time and size."""
    with suppress(OSError), os.scandir(folder) as items:
        for item in items:
            with suppress(OSError):
                is_wanted = item.name.endswith(".slot") and not item.name.startswith(".") and _is_text(item.path)
                if is_wanted and item.is_file():
                    status = item.stat()
                    yield Path(item.path), (status.st_mtime_ns, status.st_size)
