"""The tensors of a model file on their way into a model."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from engine.errors import FormatError, UnsupportedError
from engine.formats.gguf import GGUFFile
from engine.kernels import F32, Kernels
from engine.quants import BLOCK_FORMATS, dequantize

LoadProgress = Callable[[int, int], None]  # bytes done, bytes in all; may raise to cancel


class Weights:
    """Hands out each tensor once, in the kernels' layout, and takes the fingerprint meanwhile."""

    def __init__(self, gguf: GGUFFile, kernels: Kernels, progress: LoadProgress | None = None) -> None:
        self._gguf = gguf
        self._kernels = kernels
        self._progress = progress
        self._left = dict(gguf.tensors)
        self._digests: dict[str, bytes] = {}
        self._total = sum(info.nbytes for info in gguf.tensors.values())
        self._done = 0
        for info in gguf.tensors.values():
            if info.type not in BLOCK_FORMATS:
                raise UnsupportedError(
                    f"The model {gguf.path} has tensors of the type {info.type.name} "
                    f"({info.name}), which is not supported."
                )

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def pop(self, name: str, *shape: int) -> F32:
        """Return the tensor `name`, which must have `shape`.

        Raises FormatError when it is missing or has another shape.
        """
        info = self._left.pop(name, None)
        if info is None:
            raise FormatError(f"The model {self._gguf.path} lacks the tensor {name}.")
        if info.shape != shape:
            raise FormatError(
                f"The model {self._gguf.path} has the tensor {name} in the shape {info.shape} instead of {shape}."
            )
        data = self._gguf.tensor_bytes(name)
        self._digests[name] = xxhash.xxh3_128_digest(data.data)
        weights = dequantize(data, info.type, info.shape, team=self._kernels.team)
        self._done += info.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return weights

    def finish(self) -> str:
        """Return the fingerprint of the model: 32 hex digits over the bytes, types and shapes of all tensors.

        Raises UnsupportedError when the file has tensors that nothing asked for: a model computed without
        them would be a different one.
        """
        if self._left:
            raise UnsupportedError(
                f"The model {self._gguf.path} has tensors that its architecture does not use here: "
                f"{', '.join(sorted(self._left)[:3])}{', …' if len(self._left) > 3 else ''}."
            )
        digest = xxhash.xxh3_128()
        for name in sorted(self._digests):
            info = self._gguf.tensors[name]
            digest.update(f"{name}\0{info.type.name}\0{info.shape}\0".encode())
            digest.update(self._digests[name])
        return digest.hexdigest()
