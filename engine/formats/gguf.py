"""Open GGUF model files.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import io
import math
import os
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
    Keys,
)

from engine.errors import DormouseError, FormatError, UnsupportedError, excerpt
from engine.formats.binary import ByteReader, read_into

_MAGIC = b"GGUF"
_VERSION = struct.Struct("<I")
_COUNTS = struct.Struct("<QQ")  # tensors, metadata entries
_TYPE_ID = struct.Struct("<I")
_ARRAY = struct.Struct("<IQ")  # type id of the items, their number
_N_DIMENSIONS = struct.Struct("<I")
_TENSOR_PLACE = struct.Struct("<IQ")  # type id, offset into the data section

_MIN_METADATA_SIZE = 8 + 4 + 1  # an empty key, its type, one byte
_MIN_TENSOR_SIZE = 8 + 4 + 4 + 8  # an empty name, no dimensions, type, offset
_MAX_DIMENSIONS = 4

_NUMBERS: dict[int, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}

_KINDS: Mapping[type, str] = {
    bool: "a yes or no",
    int: "a whole number",
    float: "a decimal number",
    str: "a text",
    list: "a list of texts",
    np.ndarray: "a list of numbers",
}

T = TypeVar("T")


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in its file.

    Attributes:
        shape: in NumPy's order, the outermost dimension first (the reverse of the file's).
        offset: from the beginning of the file, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file, for one thread at a time.

    Attributes:
        metadata: numbers, booleans and strings as such; arrays of strings as `list[str]`, other arrays as
            NumPy arrays of shape (n,).
        tensors: by name, in the order of the file.
    """

    def __init__(
        self,
        *,
        path: Path,
        version: int,
        metadata: Mapping[str, object],
        tensors: Mapping[str, TensorInfo],
        file: io.FileIO,
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = MappingProxyType(metadata)
        self.tensors = MappingProxyType(tensors)
        self._file = file

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a metadata value of the Python type `kind`.

        Raises:
            FormatError: the file has another type of value there, or none and there is no default.
        """
        value = self.metadata.get(key, default)
        if value is None:
            raise FormatError(f"The file {self.path} lacks the metadata {key}.")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FormatError(
                f"The file {self.path} has {_KINDS[type(value)]} as its metadata {key}, not {_KINDS[kind]}."
            )
        return value

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """Read the bytes of a tensor, shape (nbytes,).

        Raises:
            FormatError: there is no such tensor, or the file has become shorter than it was.
            DormouseError: the file can't be read.
        """
        info = self.tensors.get(name)
        if info is None:
            raise FormatError(f"The file {self.path} lacks the tensor {name}.")
        data = np.empty(info.nbytes, np.uint8)
        self.read_into(data, info.offset)
        return data

    def read_into(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill an array with the bytes of the file from an offset on; raises the errors of `tensor_bytes`."""
        read_into(target, self._file, offset, str(self.path))

    @property
    def changed(self) -> float:
        """When the file, its name or its rights were changed last, in seconds since 1970, which nobody can set back.

        Infinite on Windows, which keeps no such time.
        """
        return math.inf if sys.platform == "win32" else os.fstat(self._file.fileno()).st_ctime

    def close(self) -> None:
        """Close the file; its metadata and table of tensors stay."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file (version 2 or 3, little-endian) and read its metadata and table of tensors.

    Raises:
        DormouseError: the file can't be opened or read.
        FormatError: it is not a GGUF file, or it is damaged.
        UnsupportedError: it has a version, byte order or type that is not known here.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for somebody to write to it
            raise DormouseError(f"{path} can't be opened: it is no file.")
        file = io.FileIO(path)
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise DormouseError(f"The file {path} can't be opened: {_reason(error)}.") from error
    try:
        return _read(path, file)
    except BaseException:
        file.close()
        raise


def _reason(error: OSError | ValueError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def _read(path: Path, file: io.FileIO) -> GGUFFile:
    cursor = ByteReader(file, str(path))
    if not cursor.remaining:
        raise FormatError(f"The file {path} is empty.")
    version = _read_version(cursor)
    n_tensors, n_metadata = cursor.unpack(_COUNTS)
    metadata = _read_metadata(cursor, n_metadata)
    tensors = _read_tensors(cursor, n_tensors, alignment=_alignment(cursor, metadata))
    return GGUFFile(path=path, version=version, metadata=metadata, tensors=tensors, file=file)


def _read_version(cursor: ByteReader) -> int:
    if cursor.remaining < len(_MAGIC) or cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"The file {cursor.name} is not a GGUF model file.")
    (version,) = cursor.unpack(_VERSION)
    if version and version & 0xFFFF == 0:  # a small number, read in the wrong order
        raise UnsupportedError(f"The file {cursor.name} is a big-endian GGUF file, which can't be read here.")
    if version not in {2, 3}:
        raise UnsupportedError(
            f"The file {cursor.name} has version {version} of the GGUF format; only 2 and 3 can be read."
        )
    return int(version)


def _read_metadata(cursor: ByteReader, n: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(cursor.count(n, item_size=_MIN_METADATA_SIZE, what="metadata entries")):
        key = cursor.string()
        if key in metadata:
            cursor.fail(f"it has the metadata {excerpt(key)} twice")
        (type_id,) = cursor.unpack(_TYPE_ID)
        is_array = type_id == GGUFValueType.ARRAY
        metadata[key] = _read_array(cursor, key) if is_array else _read_scalar(cursor, key, type_id)
    return metadata


def _read_scalar(cursor: ByteReader, key: str, type_id: int) -> object:
    (item,) = _read_items(cursor, key, type_id, 1)
    return item if isinstance(item, str) else item.item()


def _read_array(cursor: ByteReader, key: str) -> list[str] | npt.NDArray[Any]:
    type_id, n = cursor.unpack(_ARRAY)
    if type_id == GGUFValueType.ARRAY:
        raise UnsupportedError(f"The file {cursor.name} has an array of arrays as its metadata {excerpt(key)}.")
    return _read_items(cursor, key, type_id, n)


def _read_items(cursor: ByteReader, key: str, type_id: int, n: int) -> list[str] | npt.NDArray[Any]:
    if type_id == GGUFValueType.STRING:
        return cursor.strings(n)
    if type_id == GGUFValueType.BOOL:
        return cursor.array(n, np.uint8).astype(bool)
    if type_id not in _NUMBERS:
        cursor.fail(f"its metadata {excerpt(key)} is of the unknown type {type_id}")
    return cursor.array(n, _NUMBERS[type_id])


def _alignment(cursor: ByteReader, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment.bit_count() != 1:
        cursor.fail(f"its alignment {alignment} is not a power of two")
    return alignment


def _read_tensors(cursor: ByteReader, n: int, *, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(cursor.count(n, item_size=_MIN_TENSOR_SIZE, what="tensors")):
        tensor = _read_tensor(cursor, alignment=alignment)
        if tensor.name in tensors:
            cursor.fail(f"it has the tensor {excerpt(tensor.name)} twice")
        tensors[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    file_size = cursor.position + cursor.remaining
    for tensor in tensors.values():
        placed = replace(tensor, offset=data_start + tensor.offset)
        if placed.offset + placed.nbytes > file_size:
            cursor.fail(f"it ends at byte {file_size}, before the end of the tensor {excerpt(tensor.name)}")
        tensors[tensor.name] = placed
    return tensors


def _read_tensor(cursor: ByteReader, *, alignment: int) -> TensorInfo:
    """Read one entry of the table; its offset is still from the beginning of the data section."""
    name = cursor.string()
    (n_dimensions,) = cursor.unpack(_N_DIMENSIONS)
    if n_dimensions > _MAX_DIMENSIONS:
        cursor.fail(f"the tensor {excerpt(name)} claims {n_dimensions} dimensions")
    shape = tuple(cursor.array(n_dimensions, "<u8").tolist()[::-1])
    type_id, offset = cursor.unpack(_TENSOR_PLACE)
    if type_id not in GGML_QUANT_SIZES:
        raise UnsupportedError(
            f"The file {cursor.name} can't be used: its tensor {excerpt(name)} has type {type_id}, "
            "which this version doesn't know."
        )
    tensor_type = GGMLQuantizationType(type_id)
    block_size, block_nbytes = GGML_QUANT_SIZES[tensor_type]
    row_size = shape[-1] if shape else 1
    if row_size % block_size:
        cursor.fail(f"the rows of the tensor {excerpt(name)} have {row_size} weights, not a multiple of {block_size}")
    if offset % alignment:
        cursor.fail(f"the tensor {excerpt(name)} does not begin at a multiple of {alignment} bytes")
    nbytes = math.prod(shape) // block_size * block_nbytes
    return TensorInfo(name, shape, tensor_type, offset, nbytes)
