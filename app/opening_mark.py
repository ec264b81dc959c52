"""What is being opened, written down for the start after one that did not survive it.

A file can end the process that opens it: a fault in a library, memory that runs out. Without a mark the next start
would open the same file, and end in the same way, for ever.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from engine.paths import data_folder
from engine.private_file import read_file, write_private

Kind = Literal["conversation", "model"]
_FILE_NAME = "opening.json"
_MOST_BYTES = 1 << 20


class OpeningMark:
    """A small file that names what is being opened; there is none while nothing is.

    Where it can't be written there is no mark: opening goes on without.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or data_folder() / _FILE_NAME
        self._names: dict[Kind, str] = {}
        self.left = _read(self._path)
        """What the process before this one was opening when it ended."""

    def begin(self, kind: Kind, path: Path) -> None:
        """Note that this file is about to be opened, in place of another of its kind."""
        self._change({**self._names, kind: str(path)})

    def end(self, kind: Kind) -> None:
        """Note that what was opened last of a kind did no harm."""
        self._change({other: name for other, name in self._names.items() if other != kind})

    def clear(self) -> None:
        """Note that nothing is being opened, by this process or the one before it."""
        self._names = {}
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _change(self, names: dict[Kind, str]) -> None:
        if names == self._names:
            return
        if not names:
            self.clear()
            return
        self._names = names
        with suppress(OSError):
            write_private(self._path, json.dumps(names))


def _read(path: Path) -> dict[Kind, Path]:
    try:
        names = json.loads(read_file(path, limit=_MOST_BYTES))
        return {kind: Path(names[kind]) for kind in get_args(Kind) if isinstance(names.get(kind), str)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
