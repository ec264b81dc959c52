"""Read little-endian binary data, with one error for everything that can be wrong with it."""

import struct
from mmap import mmap
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from engine.errors import FormatError

_STRING_LENGTH = struct.Struct("<Q")


class ByteReader:
    """Walk over the bytes of a file from its beginning.

    Whatever is wrong with the data (it ends too early, a count exceeds what is left, text is not UTF-8)
    raises `FormatError` with a sentence that names the file.

    Attributes:
        name: the file, as the user is told about it.
        position: offset of the next byte to read.
    """

    def __init__(self, buffer: bytes | mmap, name: str) -> None:
        self.name = name
        self.position = 0
        self._buffer = buffer
        self._size = len(buffer)

    @property
    def remaining(self) -> int:
        """The number of bytes not read yet."""
        return self._size - self.position

    def fail(self, problem: str) -> NoReturn:
        """Raise a `FormatError` that names the file and the problem."""
        raise FormatError(f"The file {self.name} is damaged: {problem}.")

    def take(self, n_bytes: int) -> bytes:
        """Return the next `n_bytes` bytes."""
        if not 0 <= n_bytes <= self.remaining:
            self.fail(f"it ends at byte {self._size}, inside a part that begins at byte {self.position}")
        start = self.position
        self.position += n_bytes
        return self._buffer[start : self.position]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the fields of one `struct.Struct`."""
        return layout.unpack(self.take(layout.size))

    def count(self, n: int, *, item_size: int, what: str) -> int:
        """Return `n` if that many items of at least `item_size` bytes can follow."""
        if n * item_size > self.remaining:
            self.fail(f"it claims {n} {what}, more than it has room for")
        return n

    def array(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a copy of the next `n` items as an array of shape (n,)."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self.take(n * dtype.itemsize), dtype).copy()

    def string(self) -> str:
        """Return one UTF-8 string with a 64-bit length before it."""
        return self.strings(1)[0]

    def strings(self, n: int) -> list[str]:
        """Return `n` UTF-8 strings with a 64-bit length before each.

        One tight loop: a vocabulary has hundreds of thousands of them.
        """
        self.count(n, item_size=_STRING_LENGTH.size, what="strings")
        buffer, size, position = self._buffer, self._size, self.position
        read_length = _STRING_LENGTH.unpack_from
        strings = []
        try:
            for _ in range(n):
                start = position + 8
                position = start + read_length(buffer, position)[0]
                if position > size:
                    self.fail(f"it ends at byte {size}, inside a string that begins at byte {start}")
                strings.append(buffer[start:position].decode())
        except struct.error:
            self.fail(f"it ends at byte {size}, inside the length of a string")
        except UnicodeDecodeError:
            self.fail(f"the string at byte {start} is not valid UTF-8")
        self.position = position
        return strings
