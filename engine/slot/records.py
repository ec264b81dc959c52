"""What a slot file holds, as immutable records.

Two linked trees: messages are what people and models said, segments are the tokens that a model evaluated.
Rows, checkpoints and receipts hang on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.arrays import TokenIds

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Role: TypeAlias = Literal["system", "user", "assistant"]
FinishReason: TypeAlias = Literal["pending", "stop", "length", "cancelled", "failed", "interrupted"]

CheckpointReason: TypeAlias = Literal[
    "message_end", "prompt_end", "interval", "generation", "cancelled", "shared", "retry"
]
"""Why there is a checkpoint: a message ended; the newest prompt did; within a long message; within a long reply; the
turn was cancelled; another conversation had it; what came before could not be saved."""
MESSAGE_ENDS: frozenset[str] = frozenset({"message_end", "prompt_end"})

Source: TypeAlias = Literal["cold", "live", "restored"]
"""Where reused state came from: nowhere; the slot's memory; the slot file, where an earlier process left it."""
Reason: TypeAlias = Literal[
    "none",
    "new_chat",
    "diverged",
    "no_checkpoint",
    "other_model",
    "other_kv_type",
    "damaged",
    "state_dropped",
]
"""Why not more was reused; `reuse.IN_WORDS` says each in words."""

ROOT_DIGEST = bytes(16)


@dataclass(frozen=True)
class Message:
    """What a person or a model said; versions of it are siblings.

    `parent` is None or the id of an earlier message. `finish_reason` is None for user and system messages,
    'pending' for a reply that is being written. `damaged` says that nothing in this message can be trusted.
    """

    id: int
    parent: int | None
    role: str
    text: str
    created: float
    finish_reason: FinishReason | None = None
    damaged: bool = False


@dataclass(frozen=True)
class ModelIdentity:
    """An identity under which states are stored; (fingerprint, kv_type) is unique in a file.

    `fingerprint`, `tokenizer` and `template` are hexadecimal digests; `config` is what shapes the state.
    """

    id: int
    fingerprint: str
    architecture: str
    name: str
    path: str
    tokenizer: str
    template: str
    kv_type: str
    kernels: str
    config: Mapping[str, JSON]


@dataclass(frozen=True, eq=False)
class Content:
    """The token ids, int32 (n,), of a message's content under the tokenizer with this digest."""

    message: int
    tokenizer: str
    token_ids: TokenIds


@dataclass(frozen=True)
class Segment:
    """A run of tokens that a model evaluated: the ids that follow `parent_length` ids of the parent.

    `base` is the digest of everything before the run, `digest` of everything up to its end (xxh3-128,
    chained): equal digests mean equal token ids from the first one on.
    """

    id: int
    model: int
    parent: int | None
    parent_length: int
    token_ids: TokenIds = field(compare=False, repr=False)  # int32 (n,)
    base: bytes
    digest: bytes

    @classmethod
    def follow(cls, id: int, *, model: int, parent: Segment | None, length: int, token_ids: TokenIds) -> Segment:
        """Build the segment of `token_ids` that follows the first `length` own ids of `parent`."""
        base = parent.prefix(length) if parent else ROOT_DIGEST
        digest = chain_digest(base, token_ids)
        return cls(id, model, parent.id if parent else None, length, token_ids, base, digest)

    def prefix(self, length: int) -> bytes:
        """Return the digest of everything up to `length` own ids."""
        return chain_digest(self.base, self.token_ids[:length])


@dataclass(frozen=True)
class Cursor:
    """A place in the tree of segments: behind the first `length` ids of a segment; behind nothing at all for None."""

    segment: int | None
    length: int


@dataclass(frozen=True)
class StoredRows:
    """Memory rows of `part` for the own ids lo .. hi - 1 of a segment: `nbytes` that only the memory can read."""

    id: int
    segment: int
    part: str
    lo: int
    hi: int
    nbytes: int
    role: str = "target"


@dataclass(frozen=True)
class Checkpoint:
    """A context checkpoint after `length` own ids of a segment; its payload, of `nbytes`, is read on demand.

    One without any bytes was given up: it tells where a message ended.
    """

    id: int
    segment: int
    length: int
    message: int | None
    reason: CheckpointReason
    created: float
    has_states: bool
    nbytes: int

    @property
    def cursor(self) -> Cursor:
        """Its place."""
        return Cursor(self.segment, self.length)


@dataclass(frozen=True, eq=False)
class CheckpointPayload:
    """The final hidden state, float32 (n_embd,); the next-token digest; the states of recurrent layers."""

    hidden: NDArray[np.float32]
    next_tokens: bytes
    states: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.hidden.nbytes + len(self.next_tokens) + len(self.states or b"")


@dataclass(frozen=True)
class Receipt:
    """What a reply cost: `cache_n` tokens reused (from which source), `prompt_n` evaluated (why not less).

    `donor` names the slot file of the conversation from which some of them were taken, None if they are its own.
    """

    message: int
    model: int
    prompt_n: int
    cache_n: int
    source: Source
    reason: Reason
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    kernels: str
    created: float
    donor: str | None = None


@dataclass(frozen=True)
class LogEntry:
    """An event in the life of the conversation's state."""

    created: float
    event: str
    detail: Mapping[str, JSON]


def chain_digest(base: bytes, token_ids: TokenIds) -> bytes:
    """Return the xxh3-128 digest of `base` followed by the ids as little-endian int32."""
    digest = xxhash.xxh3_128(base)
    digest.update(np.ascontiguousarray(token_ids, dtype="<i4").data)
    return digest.digest()
