"""The metadata of a model file on their way into a model: what is read here is what shaped it."""

from __future__ import annotations

import struct
from typing import TypeVar

import numpy as np
import xxhash

from engine.formats.gguf import GGUFFile

T = TypeVar("T")


class ShapingMetadata:
    """The one door through which a model's loader reads metadata; it notes each key with what it said.

    Two files with the same tensors make different models where any of that differs. What is not read through here (a
    name, a license, the vocabulary, which has a digest of its own) makes none.
    """

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self._read: dict[str, object] = {}

    def __contains__(self, key: str) -> bool:
        return self._note(key) is not None

    def get(self, key: str) -> object:
        """Return a value of whatever type, None where the file has none."""
        return self._note(key)

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value as `GGUFFile.value` does, with its errors."""
        self._note(key)
        return self._gguf.value(key, kind, default)

    @property
    def read(self) -> dict[str, object]:
        """What was read so far, by key; None for what the file does not say."""
        return dict(self._read)

    def digest(self) -> bytes:
        """Return the xxh3-128 digest of all that was read, whatever the order."""
        digest = xxhash.xxh3_128()
        for key in sorted(self._read):
            data = _encoded(self._read[key])
            digest.update(f"{key}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.digest()

    def _note(self, key: str) -> object:
        return self._read.setdefault(key, self._gguf.metadata.get(key))


def _encoded(value: object) -> bytes:
    match value:
        case None:
            return b"-"
        case bool():
            return b"b1" if value else b"b0"
        case int():
            return f"i{value}".encode()
        case float():
            return b"f" + struct.pack("<d", value)
        case str():
            return b"t" + value.encode("utf-8", "surrogateescape")
        case np.ndarray():
            return f"a{value.dtype.str} ".encode() + value.tobytes()
        case list():
            return b"l" + b"".join(_encoded(item) + b"\0" for item in value)
    raise AssertionError(f"GGUF has no {type(value).__name__}")
