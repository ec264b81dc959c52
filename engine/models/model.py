"""A loaded model: token ids and a memory in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from engine.arrays import F32, TokenIds
from engine.errors import NotFiniteError, UnknownTokenError
from engine.kernels import Kernels, Matrix
from engine.memory import LayerMemory, Memory, compose
from engine.models.config import ModelConfig
from engine.models.layers import Layer, Norm, Ubatch
from engine.models.single_tokens import SingleTokens


class Model:
    """A decoder-only model. Immutable and shared by all slots."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        kernels: Kernels,
        token_embd: Matrix,
        blocks: Sequence[Layer],
        output_norm: Norm,
        output: Matrix,
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self._token_embd = token_embd
        self._blocks = tuple(blocks)
        self._output_norm = output_norm
        self._output = output
        self._single_tokens = SingleTokens()
        self._embedding_scale = np.float32(embedding_scale)
        self._logit_scale = np.float32(logit_scale)
        self._logit_softcap = None if logit_softcap is None else np.float32(logit_softcap)

    @property
    def layer_memories(self) -> tuple[Sequence[LayerMemory], ...]:
        """What each block keeps of the tokens seen."""
        return tuple(block.memory for block in self._blocks)

    def new_memory(self, kv_type: DTypeLike = np.float16) -> Memory:
        """Return an empty memory of the kinds that this model's layers need, K/V rows in `kv_type`."""
        return compose(self.layer_memories, kv_type)

    def forward(self, token_ids: TokenIds, memory: Memory, *, between_layers: Callable[[], None] = lambda: None) -> F32:
        """Evaluate one ubatch of tokens that follow those in `memory`.

        Returns the final hidden states, normed, shape (n_tokens, n_embd). `between_layers` is called before
        each layer (of a recorded pass, before the first) and may raise to cancel. After any error the memory is as it
        was before the call, but that recurrent layers can't go back further than that. Raises NotFiniteError where a
        state, final or of a recurrent layer, is not finite, UnknownTokenError for an id that is not in the vocabulary.
        """
        if (unknown := (token_ids < 0) | (token_ids >= self.config.n_vocab)).any():
            raise UnknownTokenError(int(token_ids[unknown][0]), self.config.n_vocab)
        ubatch = Ubatch(self.kernels, memory, memory.n_tokens, token_ids)
        try:
            memory.append(ubatch.n_tokens)
            x = self.kernels.take_rows(self._token_embd, token_ids) * self._embedding_scale
            if ubatch.n_tokens == 1:
                # all that a recurrent layer keeps of the last token has a part in its output
                return _finite(self._single_tokens.evaluate(self._evaluate, x, ubatch, between_layers))
            hidden = _finite(self._evaluate(x, ubatch, between_layers))
            for state in memory.states.values():
                _finite(state.r)
                _finite(state.s)
            return hidden  # noqa: TRY300 - what is above may fail as well
        except BaseException:
            memory.rewind(ubatch.start)
            raise

    def _evaluate(self, x: F32, ubatch: Ubatch, between_layers: Callable[[], None]) -> F32:
        """Return what `forward` does for embeddings x (n_tokens, n_embd)."""
        for block in self._blocks:
            between_layers()
            x = block(x, ubatch)
        return self._output_norm(self.kernels, x)

    def logits(self, hidden: F32) -> F32:
        """Return the logits of hidden states (n_tokens, n_embd) as `forward` returns them: (n_tokens, n_vocab).

        Raises NotFiniteError where one is not finite.
        """
        logits = self.kernels.matmul(hidden, self._output)
        if self._logit_scale != 1:
            logits *= self._logit_scale
        _finite(logits)  # a softcap would hide infinity
        if self._logit_softcap is not None:
            logits = np.tanh(logits / self._logit_softcap) * self._logit_softcap
        return logits


def _finite(x: F32) -> F32:
    """Return x; raise NotFiniteError if a value is NaN or infinite."""
    if not np.isfinite(x).all():
        raise NotFiniteError
    return x
