"""The tree of messages as people see it: one path of it is current, versions are siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from engine.slot.records import Message


class Transcript:
    """An immutable view of a conversation's messages; `leaf` is the last one of the current path."""

    def __init__(self, messages: Iterable[Message], leaf: int | None) -> None:
        self.messages = {message.id: message for message in messages}
        self.leaf = leaf if leaf in self.messages else None
        self._children: dict[int | None, list[Message]] = defaultdict(list)
        for message in self.messages.values():
            self._children[message.parent].append(message)

    def path(self, leaf: int | None = None) -> list[Message]:
        """Return the messages from the first one to `leaf`, by default to the current leaf."""
        path = []
        id = self.leaf if leaf is None else leaf
        while id is not None and (message := self.messages.get(id)):
            path.append(message)
            id = message.parent
        return path[::-1]

    def versions(self, id: int) -> list[Message]:
        """Return a message and its siblings of the same role, oldest first."""
        message = self.messages[id]
        return [sibling for sibling in self._children[message.parent] if sibling.role == message.role]

    def newest_leaf(self, id: int) -> int:
        """Return the leaf reached from a message by following the newest version each time."""
        while children := self._children[id]:
            id = max(child.id for child in children)
        return id

    def user_messages(self) -> list[Message]:
        """Return the user's messages on the current path."""
        return [message for message in self.path() if message.role == "user"]
