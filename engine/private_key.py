"""The key of an installation: what tells its own files from those that somebody else has made.

It is a secret of 32 random bytes in the user's data folder, made on first need. From it comes one key for each purpose,
so that what is signed for one can't be passed off as the other.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.errors import DormouseError
from engine.paths import data_folder
from engine.private_file import UnfitFileError, create_private, read_file, write_private

KEY_BYTES = 32
_FILE_NAME = "key"


def installation_key(purpose: str) -> bytes:
    """Return this installation's key for a purpose, 32 bytes: the same whenever it is asked, in every process.

    `purpose` is the name that the purpose has for good, of at most 16 bytes. Where no file can be kept, the key is one
    of this process alone: what another one has signed is then not known again, and has to be made anew.

    Raises:
        ValueError: the name of the purpose is too long.
    """
    return hashlib.blake2b(key=_secret(), person=purpose.encode(), digest_size=KEY_BYTES).digest()


def _secret() -> bytes:
    try:
        return _kept(data_folder() / _FILE_NAME)
    except (DormouseError, OSError):
        return _of_this_process()


def _kept(path: Path) -> bytes:
    """Return the secret in a file, which is made if there is none, or none that its owner alone could have read."""
    try:
        return _read(path)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another process was faster
            create_private(path, secrets.token_bytes(KEY_BYTES))
    except UnfitFileError:
        write_private(path, secrets.token_bytes(KEY_BYTES))
    return _read(path)


def _read(path: Path) -> bytes:
    secret = read_file(path, limit=KEY_BYTES, is_private=True)
    if len(secret) != KEY_BYTES:
        raise UnfitFileError(errno.EINVAL, "it is too short", str(path))
    return secret


@cache
def _of_this_process() -> bytes:
    return secrets.token_bytes(KEY_BYTES)
