"""GGUF tensor types, turned into the layouts that the kernels compute with."""

from engine.quants.blocks import BLOCK_FORMATS, BlockFormat
from engine.quants.dequantize import dequantize

__all__ = ["BLOCK_FORMATS", "BlockFormat", "dequantize"]
