"""What only one process at a time may do."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Wait until no other process has this folder, and make it; whoever is killed has it no more."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / ".lock", timeout=3600)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield
