"""Writing model files whose matrices are all of one tensor type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from engine.arrays import F32
from engine.errors import DormouseError
from engine.formats.gguf import GGUFFile
from engine.kernels.team import ThreadTeam
from engine.quants import dequantize

_ARCHITECTURE = "general.architecture"
_BLOCK_SIZE = 32  # weights of a row that are quantized together


def write_model(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Iterable[tuple[str, F32]],
    tensor_type: GGMLQuantizationType,
) -> None:
    """Write a model with its matrices in `tensor_type` and all else in float32.

    The metadata are as `GGUFFile` has them, the architecture among them; `tensors` gives names and weights. Raises
    DormouseError if the file can't be written.
    """
    writer = gguf.GGUFWriter(path, str(metadata[_ARCHITECTURE]))
    for key, value in metadata.items():
        if key != _ARCHITECTURE:
            add_metadata(writer, key, value)
    for name, weights in tensors:
        kind = tensor_type if is_matrix(name, weights.shape) else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(weights, kind), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise DormouseError(f"The file {path} can't be written: {error.strerror or error}.") from error


def dequantized(file: GGUFFile) -> Iterator[tuple[str, F32]]:
    """Yield the names and weights of all tensors of a model.

    Raises UnsupportedError for a tensor type that can't be read.
    """
    team = ThreadTeam()
    try:
        for info in file.tensors.values():
            yield info.name, dequantize(file.tensor_bytes(info.name), info.type, info.shape, team=team)
    finally:
        team.close()


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a tensor is a matrix (or one for each expert) that may be quantized.

    Norms by group, the kernels of short convolutions and the like have two dimensions and are none.
    """
    in_blocks = len(shape) in {2, 3} and shape[-1] % _BLOCK_SIZE == 0
    return in_blocks and name.endswith(".weight") and "_norm" not in name


def add_metadata(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Add a metadata value in the type that its Python type suggests."""
    match value:
        case np.ndarray():
            writer.add_array(key, value.tolist())
        case list():
            writer.add_array(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            raise TypeError(key)
