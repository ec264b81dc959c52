"""Read little-endian binary data, with one error for everything that can be wrong with it."""

import io
import os
import struct
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from engine.errors import DormouseError, FormatError

_STRING_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 18  # that are read at once: few enough to stay in a cache


def read_into(target: npt.NDArray[np.uint8], file: io.FileIO, offset: int, name: str) -> None:
    """Fill an array with the bytes of a file from an offset on.

    They are read, not mapped: where another program cuts a mapped file short, or its disk fails, whoever looks at it
    ends without a word. Raises `FormatError` where the file ends too early, DormouseError where it can't be read, with
    a sentence that gives its `name`.
    """
    view = target.data
    try:
        file.seek(offset)
        while view and (n := file.readinto(view)):  # systems read some gigabytes at most
            view = view[n:]
    except OSError as error:
        raise DormouseError(f"The file {name} can't be read: {error.strerror or error}.") from error
    if view:
        raise FormatError(f"The file {name} was cut short while it was read.")


class ByteReader:
    """Walk over the bytes of a file from its beginning.

    Whatever is wrong with the data (it ends too early, a count exceeds what is left, text is not UTF-8)
    raises `FormatError` with a sentence that names the file; for a file that can't be read see `read_into`.

    Attributes:
        name: the file, as the user is told about it.
    """

    def __init__(self, file: io.FileIO, name: str) -> None:
        self.name = name
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._n_read = 0  # bytes
        self._buffer = b""  # the last ones of them
        self._place = 0  # of the next byte in the buffer

    @property
    def position(self) -> int:
        """Offset of the next byte."""
        return self._n_read - len(self._buffer) + self._place

    @property
    def remaining(self) -> int:
        """The number of bytes not read yet."""
        return self._size - self.position

    def fail(self, problem: str) -> NoReturn:
        """Raise a `FormatError` that names the file and the problem."""
        raise FormatError(f"The file {self.name} is damaged: {problem}.")

    def take(self, n_bytes: int) -> bytes:
        """Return the next `n_bytes` bytes."""
        self._need(n_bytes, "a part")
        start = self._place
        self._place += n_bytes
        return self._buffer[start : self._place]

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
        self._need(n * dtype.itemsize, "a part")
        start = self._place
        self._place += n * dtype.itemsize
        return np.frombuffer(self._buffer, dtype, n, start).copy()

    def string(self) -> str:
        """Return one UTF-8 string with a 64-bit length before it."""
        return self.strings(1)[0]

    def strings(self, n: int) -> list[str]:
        """Return `n` UTF-8 strings with a 64-bit length before each.

        One tight loop: a vocabulary has hundreds of thousands of them.
        """
        self.count(n, item_size=_STRING_LENGTH.size, what="strings")
        buffer, place, end = self._buffer, self._place, len(self._buffer)
        read_length = _STRING_LENGTH.unpack_from
        strings = []
        for _ in range(n):
            if place + 8 > end:
                self._place = place
                self._need(8, "the length of a string")
                buffer, place, end = self._buffer, self._place, len(self._buffer)
            start = place + 8
            place = start + read_length(buffer, place)[0]
            if place > end:
                n_bytes, self._place = place - start, start
                self._need(n_bytes, "a string")
                buffer, start, end = self._buffer, self._place, len(self._buffer)
                place = start + n_bytes
            try:
                strings.append(buffer[start:place].decode())
            except UnicodeDecodeError:
                self._place = start
                self.fail(f"the string at byte {self.position} is not valid UTF-8")
        self._place = place
        return strings

    def _need(self, n_bytes: int, what: str) -> None:
        """Have the next bytes, of which there must be so many, in the buffer."""
        n_left = len(self._buffer) - self._place
        if n_bytes <= n_left:
            return
        if n_bytes > self.remaining:
            self.fail(f"it ends at byte {self._size}, inside {what} that begins at byte {self.position}")
        more = np.empty(min(max(n_bytes - n_left, _PIECE_BYTES), self._size - self._n_read), np.uint8)
        read_into(more, self._file, self._n_read, self.name)
        self._n_read += len(more)
        self._buffer, self._place = self._buffer[self._place :] + more.tobytes(), 0
