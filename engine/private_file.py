"""Small files for their owner alone: written whole or not at all, and read only if they are what they should be.

Whoever can write to a folder can put something else in a file's place: a FIFO, whose opening waits for ever, a device,
or a link to what is somebody else's. Those are refused without being opened.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# what a system lacks, it does not need: Windows has neither FIFOs in folders nor links that anybody may make
_WARY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_READING = os.O_RDONLY | _WARY
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _WARY
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _WARY
_KINDS = (
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class UnfitFileError(OSError):
    """What is found under a name is not what should be there; `strerror` says what it is instead."""


def check_is_file(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a regular file, without opening it.

    Raises:
        UnfitFileError: it is a link, a folder, a pipe, a socket or a device.
        OSError: it is not there (FileNotFoundError), or can't be looked at.
    """
    status = os.lstat(path)
    _check(status, path)
    return status


def read_file(path: str | os.PathLike[str], *, limit: int, is_private: bool = False) -> bytes:
    """Return the content of a regular file, of at most `limit` bytes, without following a link or waiting for anybody.

    If it `is_private` it must be its owner's alone, who must be the one who asks; Windows is not asked for that.

    Raises:
        UnfitFileError: it is a link, a folder, a pipe, a socket or a device, is larger, or is not private.
        OSError: it is not there (FileNotFoundError), or can't be read.
    """
    check_is_file(path)
    descriptor = os.open(path, _READING)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check(status, path)  # once more: what is there may have been replaced meanwhile
        if is_private and not _is_private(status):
            raise UnfitFileError(errno.EPERM, "it is not its owner's alone", str(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnfitFileError(errno.EFBIG, "it is too large", str(path))
    return content


def open_to_append(path: Path) -> int:
    """Return a descriptor to append to a regular file, which is made with mode 0600 if there is none.

    Raises:
        UnfitFileError: a link, a folder, a pipe, a socket or a device is in its place.
        OSError: it can't be opened.
    """
    with suppress(FileNotFoundError):
        check_is_file(path)
    descriptor = os.open(path, _APPENDING, 0o600)
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private_folder(path: Path) -> None:
    """Make a folder of mode 0700 if there is none, with those that it is in.

    Raises:
        UnfitFileError: there is one that others can write to, or that is somebody else's, or something else is there.
        OSError: it can't be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise UnfitFileError(errno.ENOTDIR, "it is a link", str(path))
    if os.name != "nt" and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022):
        raise UnfitFileError(errno.EPERM, "others can write to it", str(path))


def write_private(path: Path, content: str | bytes) -> None:
    """Replace a file by one of mode 0600 with this content, text in UTF-8.

    Raises OSError, and then leaves the file as it was.
    """
    with _beside(path, content) as written:
        written.replace(path)


def create_private(path: Path, content: str | bytes) -> None:
    """Do the same where no file is yet; of several processes that try, one succeeds.

    Raises OSError, FileExistsError if something is there.
    """
    with _beside(path, content) as written:
        if os.name == "nt":
            written.rename(path)  # which replaces nothing there
        else:
            _link(written, path)


def _link(written: Path, path: Path) -> None:
    """Give a file its name, if nothing has it: one way to say so that nobody can come between."""
    try:
        os.link(written, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no second names
        written.replace(path)
    else:
        written.unlink()


@contextmanager
def _beside(path: Path, content: str | bytes) -> Iterator[Path]:
    """Write a file beside another one; it is removed if anything goes wrong."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, _WRITING, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((text for is_kind, text in _KINDS if is_kind(status.st_mode)), "it is something else")
    raise UnfitFileError(errno.EINVAL, kind, os.fspath(path))


def _is_private(status: os.stat_result) -> bool:
    if os.name == "nt":  # whose permissions are lists that `stat` knows nothing of
        return True
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
