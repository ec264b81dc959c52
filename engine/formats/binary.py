"""Read little-endian binary data, with one error for everything that can be wrong with it."""

import io
import os
import struct
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from engine.errors import DormouseError, FormatError

_STRING_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20  # that are read ahead


def read_at(file: io.FileIO, offset: int, n_bytes: int, name: str) -> npt.NDArray[np.uint8]:
    """Return n bytes of a file from an offset on, as an array of shape (n_bytes,).

    They are read, not mapped: where another program cuts a mapped file short, or its disk fails, whoever looks at it
    ends without a word. Raises `FormatError` where the file ends too early, DormouseError where it can't be read, with
    a sentence that gives its `name`.
    """
    data = np.empty(n_bytes, np.uint8)
    view = data.data
    try:
        file.seek(offset)
        while view and (n := file.readinto(view)):  # systems read some gigabytes at most
            view = view[n:]
    except OSError as error:
        raise DormouseError(f"The file {name} can't be read: {error.strerror or error}.") from error
    if view:
        raise FormatError(f"The file {name} was cut short while it was read.")
    return data


class ByteReader:
    """Walk over the bytes of a file from its beginning.

    Whatever is wrong with the data (it ends too early, a count exceeds what is left, text is not UTF-8)
    raises `FormatError` with a sentence that names the file.

    Attributes:
        name: the file, as the user is told about it.
        position: offset of the next byte to read.
    """

    def __init__(self, file: io.FileIO, name: str) -> None:
        self.name = name
        self.position = 0
        self._file = file
        self._buffer = bytearray()  # what was read so far
        self._size = os.fstat(file.fileno()).st_size

    @property
    def remaining(self) -> int:
        """The number of bytes not read yet."""
        return self._size - self.position

    def fail(self, problem: str) -> NoReturn:
        """Raise a `FormatError` that names the file and the problem."""
        raise FormatError(f"The file {self.name} is damaged: {problem}.")

    def take(self, n_bytes: int) -> bytes:
        """Return the next `n_bytes` bytes."""
        return bytes(self._buffer[self._advance(n_bytes) : self.position])

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
        start = self._advance(n * dtype.itemsize)
        return np.frombuffer(self._buffer, dtype, n, start).copy()

    def string(self) -> str:
        """Return one UTF-8 string with a 64-bit length before it."""
        return self.strings(1)[0]

    def strings(self, n: int) -> list[str]:
        """Return `n` UTF-8 strings with a 64-bit length before each.

        One tight loop: a vocabulary has hundreds of thousands of them.
        """
        self.count(n, item_size=_STRING_LENGTH.size, what="strings")
        buffer, position = self._buffer, self.position
        n_read = len(buffer)
        read_length = _STRING_LENGTH.unpack_from
        strings = []
        try:
            for _ in range(n):
                start = position + 8
                if start > n_read:
                    n_read = self._read_up_to(start, "the length of a string")
                position = start + read_length(buffer, position)[0]
                if position > n_read:
                    n_read = self._read_up_to(position, f"a string that begins at byte {start}")
                strings.append(buffer[start:position].decode())
        except UnicodeDecodeError:
            self.fail(f"the string at byte {start} is not valid UTF-8")
        self.position = position
        return strings

    def _advance(self, n_bytes: int) -> int:
        """Go on by so many bytes, which the buffer has then; return where they begin."""
        start = self.position
        self._read_up_to(start + n_bytes, f"a part that begins at byte {start}")
        self.position += n_bytes
        return start

    def _read_up_to(self, end: int, what: str) -> int:
        """Have the buffer hold the bytes before `end`, which is inside of what; return how many it holds."""
        if end > self._size:
            self.fail(f"it ends at byte {self._size}, inside {what}")
        n_read = len(self._buffer)
        if end > n_read:
            n_more = min(self._size, max(end, n_read + _PIECE_BYTES)) - n_read
            self._buffer += read_at(self._file, n_read, n_more, self.name).data
        return len(self._buffer)
