"""What may be found where a file should be."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


IMPOSTORS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to(os.devnull),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "folder": Path.mkdir,
    "socket": _make_socket,
}
"""By what it is, what makes it. The first word is what is said of it."""
