"""A loaded model: token ids and a memory in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.kernels import F32, Kernels
from engine.memory import FullAttentionMemory, LayerShape, Memory, MemoryPart, SlidingWindowMemory
from engine.models.config import ModelConfig
from engine.models.layers import Block, Norm

TokenIds = NDArray[np.int32]


class Model:
    """A decoder-only transformer. Immutable and shared by all slots."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        kernels: Kernels,
        token_embd: F32,
        blocks: Sequence[Block],
        output_norm: Norm,
        output: F32,
        embedding_scale: float = 1.0,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self._token_embd = token_embd
        self._blocks = tuple(blocks)
        self._output_norm = output_norm
        self._output = output
        self._embedding_scale = np.float32(embedding_scale)

    def new_memory(self, kv_type: DTypeLike = np.float16) -> Memory:
        """Return an empty memory of the kinds that this model's layers need, K/V rows in `kv_type`."""
        parts: dict[int | None, MemoryPart] = {}
        shapes: dict[int | None, list[LayerShape]] = {}
        c = self.config
        for index, layer in enumerate(c.layers):
            shape = LayerShape(index, c.n_head_kv, c.head_dim_k, c.head_dim_v)
            shapes.setdefault(layer.n_swa, []).append(shape)
        for n_swa, group in shapes.items():
            parts[n_swa] = (
                FullAttentionMemory(group, kv_type)
                if n_swa is None
                else SlidingWindowMemory(group, kv_type, n_swa=n_swa)
            )
        return Memory(list(parts.values()), layers={index: parts[layer.n_swa] for index, layer in enumerate(c.layers)})

    def forward(self, token_ids: TokenIds, memory: Memory, *, between_layers: Callable[[], None] = lambda: None) -> F32:
        """Evaluate one ubatch of tokens that follow those in `memory`.

        Returns the final hidden states, normed, shape (n_tokens, n_embd). `between_layers` is called before
        each layer and may raise to cancel: the memory is then as it was before the call.
        """
        start = memory.n_tokens
        memory.append(len(token_ids))
        try:
            x = self._token_embd[token_ids] * self._embedding_scale
            ropes = {block.attention.rope for block in self._blocks}
            angles = {rope: rope.table(start, len(token_ids)) for rope in ropes}
            for block in self._blocks:
                between_layers()
                x = block(self.kernels, x, memory, start=start, angles=angles[block.attention.rope])
        except BaseException:
            memory.rewind(start)
            raise
        return self._output_norm(self.kernels, x)

    def logits(self, hidden: F32) -> F32:
        """Return the logits of hidden states (n_tokens, n_embd) as `forward` returns them: (n_tokens, n_vocab)."""
        return self.kernels.matmul(hidden, self._output)
