"""Progress on stderr: only where a person is looking."""

from __future__ import annotations

import sys


class StatusLine:
    """One line on stderr that is written over; nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._enabled = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._enabled:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def say(text: str) -> None:
    """Print a line for people on stderr."""
    print(text, file=sys.stderr)
