"""The transcript in a slot file: messages, facts about the whole conversation, token ids, receipts, log."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from engine.slot.file import mapping
from engine.slot.file.connection import Connection
from engine.slot.file.failures import DamagedError
from engine.slot.file.kinds import ID
from engine.slot.file.tables import Tables
from engine.slot.records import JSON, Content, FinishReason, LogEntry, Message, Receipt

_TABLES = ("totals", "manifest", "message")


class TranscriptTables(Tables):
    """Reads as much of a transcript as there is; `damage` says in sentences what is wrong with it."""

    damage: list[str]
    has_losses: bool  # whether more is wrong than the text of single messages

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._is_sound = not connection.salvaged and all(map(connection.is_sound, _TABLES))
        messages = self.messages()
        if self.has_losses:
            if not messages:
                raise DamagedError(f"{self.name} is damaged: none of its messages can be read.")
            connection.refuse_writes(
                f"{self.name} is damaged and therefore not written; save a copy and go on in that."
            )
        elif self.writable:
            self._settle_replies(messages)

    def messages(self) -> list[Message]:
        """Return all messages by id, parents before children, and bring `damage` up to date."""
        scan = self._raw.scan("message")
        found: dict[int, Message] = {}
        n_damaged = 0  # since the last repair
        for row in scan.records:
            if not ID.is_valid(row.id) and not row.values.get("text"):
                continue  # blank pages look like that
            n_damaged += mapping.is_damaged(row, found)
            found[row.id] = mapping.message_from(row, found)
        manifest = self._raw.scan("manifest")
        losses = {
            "The file is cut short or damaged in its structure.": not self._is_sound,
            "Messages are missing or older than they should be.": not scan.whole,
            "What the file says about itself is damaged.": not manifest.whole
            or not all(r.intact for r in manifest.records),
        }
        self.damage = [sentence for sentence, is_so in losses.items() if is_so]
        self.has_losses = bool(self.damage)
        if n_damaged:
            self.damage.append(f"{n_damaged} of {len(found)} messages are damaged: their text may be wrong.")
        return list(found.values())

    def add_message(self, parent: int | None, role: str, text: str, *, created: float) -> Message:
        """Add a message that is complete."""
        return self._add(Message(0, parent, role, text, created))

    def begin_turn(
        self, parent: int | None, user_text: str | None, *, created: float
    ) -> tuple[Message | None, Message]:
        """Add the user's message below `parent` and its pending reply, at which the leaf then is.

        Without `user_text` the reply is another answer to `parent`. All or nothing is on disk afterwards.
        """
        user = None
        with self.transaction():
            if user_text is not None:
                user = self.add_message(parent, "user", user_text, created=created)
                parent = user.id
            reply = self._add(Message(0, parent, "assistant", "", created, "pending"))
            self.set_leaf(reply.id)
        return user, reply

    def withdraw_messages(self, ids: Collection[int], *, leaf: int | None) -> None:
        """Delete messages that nobody answered, with their token ids, and leave the conversation at `leaf`."""
        with self.transaction():
            for content in self._raw.scan("content").records:
                if content.intact and content.values["message"] in ids:
                    self._raw.delete("content", content.id)
            for id in sorted(ids, reverse=True):
                self._raw.delete("message", id)
            self.set_leaf(leaf)

    def update_reply(self, id: int, text: str, finish_reason: FinishReason) -> None:
        """Set the text of a reply and how it ended ('pending': it has not)."""
        self._raw.update("message", id, {"text": mapping.storable(text), "finish_reason": finish_reason})

    def manifest(self) -> dict[str, JSON]:
        """Return the key-value pairs that belong to the conversation as a whole."""
        return dict(reversed(self._records("manifest", mapping.pair_from)))  # of equal keys the first, which is updated

    def set_manifest(self, key: str, value: JSON) -> None:
        """Set a pair of the manifest."""
        text = json.dumps(value)
        for row in self._raw.scan("manifest").records:
            if row.intact and row.values["key"] == key:
                self._raw.update("manifest", row.id, {"value": text})
                return
        self._raw.insert("manifest", {"key": key, "value": text})

    def leaf(self) -> int | None:
        """Return the id of the message at which the conversation was left, None if unknown."""
        leaf = self.manifest().get("leaf")
        return leaf if type(leaf) is int else None

    def set_leaf(self, message: int | None) -> None:
        """Note the message at which the conversation is left."""
        self.set_manifest("leaf", message)

    def contents(self) -> list[Content]:
        """Return the token ids of message contents."""
        return self._records("content", mapping.content_from)

    def put_content(self, content: Content) -> None:
        """Store the token ids of a message's content."""
        self._raw.insert("content", mapping.content_values(content))

    def receipts(self) -> list[Receipt]:
        """Return all receipts, oldest first."""
        return self._records("receipt", mapping.receipt_from)

    def put_receipt(self, receipt: Receipt) -> None:
        """Store what a reply cost."""
        self._raw.insert("receipt", vars(receipt))

    def log(self) -> list[LogEntry]:
        """Return the log, oldest first."""
        return self._records("log", mapping.log_entry_from)

    def append_log(self, entry: LogEntry) -> None:
        """Append to the log."""
        detail = json.dumps(dict(entry.detail))
        self._raw.insert("log", {"created": entry.created, "event": entry.event, "detail": detail})

    def _add(self, message: Message) -> Message:
        message = replace(message, text=mapping.storable(message.text))
        return replace(message, id=self._raw.insert("message", mapping.message_values(message)))

    def _settle_replies(self, messages: list[Message]) -> None:
        """Mark replies that a crash cut off as interrupted.

        Those that had not begun stay as well: chat templates want replies between the user's messages.
        """
        pending = [message.id for message in messages if message.finish_reason == "pending"]
        if pending:
            with self.transaction():
                for id in pending:
                    self._raw.update("message", id, {"finish_reason": "interrupted"})
