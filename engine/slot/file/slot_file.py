"""The slot file: one conversation as one SQLite database, read and written as records, without any policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from engine.errors import SlotFileError
from engine.slot.file import mapping
from engine.slot.file.connection import Connection
from engine.slot.file.disk import create_private, sync, temporary_beside
from engine.slot.file.failures import DamagedError, UnfinishedError, told
from engine.slot.file.kinds import ID
from engine.slot.file.replacing import held, put_in_place
from engine.slot.file.schema import TABLES, layout_version
from engine.slot.file.state_tables import StateTables
from engine.slot.file.transcript_tables import TranscriptTables
from engine.slot.file.upgrades import upgrade
from engine.slot.records import Message


class SlotFile(TranscriptTables, StateTables):
    """An open slot file. For one thread only; other connections are kept out until it is closed.

    The transcript is read as far as it can be: what is wrong with it is in `damage`, a list of sentences, and
    in the messages' `damaged`. A file whose transcript has losses (more than the text of single messages) is not
    written again, but `save_copy` gives a new one with what is left. Damaged state is left out and noted in
    `state_damage`.

    Every method raises `SlotFileError` (`SlotBusyError` where another process has the file) and nothing else.
    """

    notes: Sequence[str] = ()
    """What the person should know of how the file was opened, in sentences."""

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Create a slot file, or with ':memory:' one that vanishes when closed.

        The file has mode 0600. Raises `SlotFileError` if it exists, or its folder does not.
        """
        if str(path) == ":memory:":
            return cls(Connection(None))
        path = Path(path)
        with told(str(path)):
            create_private(path)
        try:
            return cls(Connection(path, is_new=True))
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
            notes = _upgrade(connection)
            slot_file = cls(connection)
        except BaseException:
            connection.close()
            raise
        slot_file.notes = notes
        return slot_file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path | None:
        """Where the file is, None for one in memory."""
        return self._connection.path

    def close(self) -> None:
        """Close the file and give up its lock; may be called again."""
        self._connection.close()

    def look_over(self) -> list[str]:
        """Look at every record, though not into rows and checkpoints; return what is damaged, in sentences.

        What is beside the transcript is in `state_damage` from then on.
        """
        for table in TABLES.keys() - {"totals", "message"}:
            self._note_damage(table)
        for model in self.models():
            self.checkpoints(model.id)
            self.rows_index(model.id)
        self.log()
        return [*self.damage, *self.state_damage, *self.broken_links()]

    def broken_links(self) -> list[str]:
        """Return which records are about something that is not there, in sentences."""
        messages = {message.id for message in self.messages()}
        models = {model.id for model in self.models()}
        leaf = self.leaf()
        checkpoints = [checkpoint for model in models for checkpoint in self.checkpoints(model)]
        broken = {
            "The message at which the conversation was left is missing.": leaf is not None and leaf not in messages,
            "There are token ids of a message that is missing.": any(
                content.message not in messages for content in self.contents()
            ),
            "There are checkpoints of a message that is missing.": any(
                checkpoint.message not in messages | {None} for checkpoint in checkpoints
            ),
            "There is a receipt of a message or model that is missing.": any(
                receipt.message not in messages or receipt.model not in models for receipt in self.receipts()
            ),
        }
        return [sentence for sentence, is_so in broken.items() if is_so]

    def copy_messages(self, messages: Iterable[Message]) -> None:
        """Insert messages of another file under their ids, damaged ones marked as such.

        Those whose ids can't be, which damage makes, come last under new ones.
        """
        impossible = []
        for message in messages:
            if ID.is_valid(message.id):
                self._raw.insert("message", {"id": message.id, **mapping.message_values(message)})
            else:
                impossible.append(message)
        for message in impossible:
            parent = message.parent if ID.is_valid(message.parent) else None
            self._raw.insert("message", mapping.message_values(replace(message, parent=parent)))

    def copy_records(self, other: SlotFile, table: str, is_wanted: Callable[[mapping.Values], bool]) -> None:
        """Insert those records of another file, without payload, that are intact and wanted, under their ids."""
        for row in other._raw.scan(table).records:
            values = {name: row.values[name] for name in TABLES[table].columns}
            if row.intact and is_wanted({"id": row.id, **values}):
                self._raw.insert(table, {"id": row.id, **values})

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
        """Write a whole, compact copy of mode 0600 to `path`, replacing what is there, unless somebody has it open.

        Of a file whose structure is damaged the copy has what can be read except the state, with damaged messages
        still marked, and can be written.
        """
        path = Path(path)
        with told(str(path)):
            if self._connection.path and path.exists() and path.samefile(self._connection.path):
                raise SlotFileError(f"{path} can't be a copy of itself.")
            with held(path):
                temporary = temporary_beside(path)
                create_private(temporary)
                try:
                    self._copy_into(temporary, name=str(path))
                    sync(temporary)
                    put_in_place(temporary, path)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise

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
            copy.copy_messages(self.messages())
            for key, value in self.manifest().items():
                copy.set_manifest(key, value)
            for table in ("model", "content", "receipt", "log"):
                copy.copy_records(self, table, lambda _: True)

    def _sum(self, table: str) -> int:
        return sum(row.values["nbytes"] for row in self._raw.scan(table).records if row.intact)


def _upgrade(connection: Connection) -> list[str]:
    """Bring a file that may be written to the present layout; one that is damaged stays as it is."""
    if not connection.writable or connection.layout == layout_version():
        return []
    try:
        return upgrade(connection)
    except DamagedError:
        connection.refuse_writes(
            f"{connection.name} is damaged and therefore not written; save a copy and go on in that."
        )
        return []


def _finish(path: Path, unfinished: UnfinishedError) -> Connection:
    """Take back what a crash left unfinished, and open the file for reading; raise `unfinished` if that can't be."""
    try:
        Connection(path).close()
    except SlotFileError:
        raise unfinished from None
    return Connection(path, read_only=True)
