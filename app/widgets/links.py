"""Which addresses may be opened, and how an address is written."""

from __future__ import annotations

from PySide6.QtCore import QUrl

SCHEMES = ("http", "https", "mailto")
"""What the web browser and the mail program open; anything else could be a file or a program on this computer."""


def can_open(url: QUrl) -> bool:
    """Tell whether an address may be handed to the desktop: one of the web with a host, or one of mail."""
    if not url.isValid() or url.scheme() not in SCHEMES:
        return False
    return bool(url.path() if url.scheme() == "mailto" else url.host())


def written(url: QUrl) -> str:
    """Return the whole address in ASCII: letters that look like others, or turn the line around, are in code."""
    return bytes(url.toEncoded().data()).decode("ascii", "replace")
