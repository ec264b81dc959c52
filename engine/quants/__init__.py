"""GGUF tensor types, turned into the layouts that the kernels compute with."""

from engine.quants import k_blocks, table_blocks  # their classes register themselves
from engine.quants.blocks import BLOCK_FORMATS, BlockFormat
from engine.quants.dequantize import dequantize
from engine.quants.matrix import Tensor, load_matrix
from engine.quants.packing import WeightMemory

__all__ = [
    "BLOCK_FORMATS",
    "BlockFormat",
    "Tensor",
    "WeightMemory",
    "dequantize",
    "k_blocks",
    "load_matrix",
    "table_blocks",
]
