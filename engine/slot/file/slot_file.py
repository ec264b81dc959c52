"""The slot file: one conversation as one SQLite database, read and written as records, without any policy."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Self

from engine.errors import SlotFileError
from engine.slot.file import mapping
from engine.slot.file.connection import Connection
from engine.slot.file.failures import DamagedError, UnfinishedError, told
from engine.slot.file.schema import TABLES
from engine.slot.file.state_tables import StateTables
from engine.slot.file.transcript_tables import TranscriptTables


class SlotFile(TranscriptTables, StateTables):
    """An open slot file. For one thread only; other connections are kept out until it is closed.

    The transcript is read as far as it can be: what is wrong with it is in `damage`, a list of sentences, and
    in the messages' `damaged`. A file whose transcript has losses (more than the text of single messages) is not
    written again, but `save_copy` gives a new one with what is left. Damaged state is left out and noted in
    `state_damage`.

    Every method raises `SlotFileError` (`SlotBusyError` where another process has the file) and nothing else.
    """

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Create a slot file, or with ':memory:' one that vanishes when closed.

        The file has mode 0600, its folder is made with mode 0700 if it is missing. Raises `SlotFileError`
        if the file exists.
        """
        if str(path) == ":memory:":
            return cls(Connection(None))
        path = Path(path)
        with told(str(path)):
            if not path.parent.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create_private(path)
        try:
            return cls.open(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, wait: bool = True) -> Self:
        """Open a slot file. Replies that a crash left pending are settled unless `read_only`.

        With `wait`, a file that is open elsewhere is waited for a little.

        An empty file, which a crash during `create` leaves, becomes a new conversation. What a crash left unfinished
        is taken back, also where the file is only to be read, if it may be written.
        """
        path = Path(path)
        try:
            connection = Connection(path, read_only=read_only, wait=wait)
        except UnfinishedError as unfinished:
            connection = _finish(path, unfinished)
        except DamagedError:
            connection = Connection(path, read_only=True, salvage=True)
        try:
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up its lock; may be called again."""
        self._connection.close()

    def sizes(self) -> dict[str, int]:
        """Return bytes: of the file, of its unused pages, and of what is stored in it, by kind."""
        page = self._connection.pragma("page_size")
        text = (row.values.get("text") for row in self._raw.scan("message").records)
        ids = (row.values.get("token_ids") for table in ("content", "segment") for row in self._raw.scan(table).records)
        return {
            "file": page * self._connection.pragma("page_count"),
            "unused": page * self._connection.pragma("freelist_count"),
            "text": sum(len(t.encode()) for t in text if isinstance(t, str)),
            "token_ids": sum(len(i) for i in ids if isinstance(i, bytes)),
            "rows": self._sum("rows"),
            "checkpoints": self._sum("checkpoint"),
        }

    def integrity_problems(self) -> list[str]:
        """Return what SQLite's own check of the whole file finds."""
        return self._connection.integrity_problems()

    def save_copy(self, path: Path | str) -> None:
        """Write a whole, compact copy of mode 0600 to `path`, replacing what is there.

        Of a file whose structure is damaged the copy has what can be read except the state, with damaged messages
        still marked, and can be written.
        """
        path = Path(path)
        with told(str(path)):
            if self._connection.path and path.exists() and path.samefile(self._connection.path):
                raise SlotFileError(f"{path} can't be a copy of itself.")
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            _create_private(temporary)
            try:
                self._copy_into(temporary, name=str(path))
                _sync(temporary)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(path.parent)

    def _copy_into(self, path: Path, *, name: str) -> None:
        if not self.has_losses:
            try:
                self._connection.copy_into(path, name=name)
            except DamagedError:
                path.write_bytes(b"")
            else:
                return
        self._rescue_into(path)

    def _rescue_into(self, path: Path) -> None:
        with SlotFile.open(path) as copy, copy.transaction():
            for message in self.messages():
                values = {"id": message.id, **mapping.message_values(message)}
                copy._raw.insert("message", values, intact=not message.damaged)
            for key, value in self.manifest().items():
                copy.set_manifest(key, value)
            for table in ("model", "content", "receipt", "log"):
                for row in self._raw.scan(table).records:
                    if row.intact:
                        known = ("id", *TABLES[table].columns)
                        copy._raw.insert(table, {name: row.values[name] for name in known})

    def _sum(self, table: str) -> int:
        return sum(row.values["nbytes"] for row in self._raw.scan(table).records if row.intact)


def _finish(path: Path, unfinished: UnfinishedError) -> Connection:
    """Take back what a crash left unfinished, and open the file for reading; raise `unfinished` if that can't be."""
    try:
        Connection(path).close()
    except SlotFileError:
        raise unfinished from None
    return Connection(path, read_only=True)


def _create_private(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows can't, and need not, sync a folder
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
