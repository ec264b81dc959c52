"""The arithmetic of the engine: one interface, several implementations, chosen once at the start."""

from engine.kernels.choice import KERNELS, load_kernels
from engine.kernels.interface import Kernels, Matrix, RopeTable
from engine.kernels.matrices import DenseMatrix, PackedMatrix, Part

__all__ = ["KERNELS", "DenseMatrix", "Kernels", "Matrix", "PackedMatrix", "Part", "RopeTable", "load_kernels"]
