"""Copies of real model files with other tensors: dequantized, requantized or changed."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from engine.formats.gguf import TensorInfo, open_gguf
from engine.kernels.team import ThreadTeam
from engine.quants import dequantize
from tests.tiny_gguf import add_metadata

Change = Callable[[TensorInfo, NDArray[np.float32]], NDArray[np.float32]]


def write_copy(
    source: Path,
    target: Path,
    *,
    tensor_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    change: Change = lambda info, weights: weights,
) -> Path:
    """Write a copy with all matrices in `tensor_type` (vectors in F32), after `change`; return its path."""
    team = ThreadTeam(2)
    with open_gguf(source) as original:
        writer = gguf.GGUFWriter(target, str(original.metadata["general.architecture"]))
        for key, value in original.metadata.items():
            if key != "general.architecture":
                add_metadata(writer, key, value)
        for info in original.tensors.values():
            weights = dequantize(original.tensor_bytes(info.name), info.type, info.shape, team=team)
            weights = change(info, weights)
            raw = tensor_type if weights.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(info.name, gguf.quantize(weights, raw), raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    team.close()
    return target
