"""Compiled code on disk: what is loaded from there is run, so it must be what this installation has put there."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path

from engine.private_file import UnfitFileError, make_private_folder, read_file, write_private
from engine.private_key import KEY_BYTES, installation_key

_PURPOSE = "kernel code"
_SUFFIX = ".o"
_MAX_BYTES = 64 << 20  # a hundred times what the largest has


class KeptCode:
    """Code by its name, in a folder that nobody else can write to, each signed with a key of the installation.

    What can't be kept, or isn't ours, is compiled: that costs time and nothing else.

    Attributes:
        note: why nothing is kept, if something is wrong with the folder.
    """

    def __init__(self, folder: Path | None) -> None:
        """Keep code in `folder`, which is made with the one that it is in; for None keep nothing."""
        self.note: str | None = None
        self._folder: Path | None = None
        self._key = b""
        if folder is None:
            return
        try:
            make_private_folder(folder.parent)
            make_private_folder(folder)
        except UnfitFileError as error:
            self.note = f"they are compiled at every start, because {error.filename} is not safe: {error.strerror}"
        except OSError:  # there is no place for it
            pass
        else:
            self._folder, self._key = folder, installation_key(_PURPOSE)

    def read(self, name: str) -> bytes | None:
        """Return the code of this name, or None."""
        if self._folder is None:
            return None
        try:
            content = read_file(self._folder / f"{name}{_SUFFIX}", limit=_MAX_BYTES, is_private=True)
        except OSError:
            return None
        signature, code = content[:KEY_BYTES], content[KEY_BYTES:]
        return code if hmac.compare_digest(signature, self._signature(name, code)) else None

    def keep(self, name: str, code: bytes) -> None:
        """Put code in place, whole or not at all."""
        if self._folder is not None:
            with suppress(OSError):
                write_private(self._folder / f"{name}{_SUFFIX}", self._signature(name, code) + code)

    def _signature(self, name: str, code: bytes) -> bytes:
        assert self._folder is not None
        signed = hashlib.blake2b(f"{self._folder.name}/{name}\0".encode(), key=self._key, digest_size=KEY_BYTES)
        signed.update(code)
        return signed.digest()
