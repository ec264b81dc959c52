"""Marks: how an installation knows the state that it computed itself.

A mark says "these rows, or this checkpoint, were computed here for these token ids with this model". It is a MAC over
all of that with a key that only this installation has: so it holds wherever the record is moved or copied, and for
nothing else. What was received from elsewhere has none that holds, and gets one only by being computed again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol, TypeAlias

from engine.private_key import installation_key
from engine.slot.records import Checkpoint, CheckpointPayload, Cursor, ModelIdentity, StoredRows
from engine.slot.segments import SegmentTree

MARK_BYTES = 32
_PURPOSE = "state marks"

Column: TypeAlias = bytes | memoryview | None


@dataclass(frozen=True)
class Claim:
    """What a mark vouches for: rows of the positions lo .. hi - 1, or what a checkpoint at lo = hi keeps.

    `token_ids` is the digest of all ids before hi: see `TokenDigests`.
    """

    kind: str  # the table of the record
    part: str
    role: str
    lo: int
    hi: int
    token_ids: bytes


class Marks:
    """Makes and proves the marks of one model's state in a tree.

    `stored` are those that a file has, by the id of their record; whether they hold is not known yet.
    """

    def __init__(self, model: ModelIdentity, tree: SegmentTree, stored: Mapping[int, bytes]) -> None:
        self._key = installation_key(_PURPOSE)
        self._model = model.fingerprint, model.kv_type
        self._tree = tree
        self._stored = stored
        self._digests = TokenDigests(tree)

    def of_rows(self, stored: StoredRows) -> Claim:
        """Return what a mark of rows says."""
        start = self._tree.n_tokens(Cursor(stored.segment, 0))
        ids = self._digests.until(Cursor(stored.segment, stored.hi))
        return Claim("rows", stored.part, stored.role, start + stored.lo, start + stored.hi, ids)

    def of_checkpoint(self, checkpoint: Checkpoint) -> Claim:
        """Return what a mark of a checkpoint says."""
        n = self._tree.n_tokens(checkpoint.cursor)
        return Claim("checkpoint", "", "", n, n, self._digests.until(checkpoint.cursor))

    def make(self, claim: Claim, payload: Sequence[Column]) -> bytes:
        """Return the mark of a claim for the payload columns of a record; for any thread."""
        # SHA-256 before the MAC: processors have instructions for it
        digests = [b"" if column is None else hashlib.sha256(column).digest() for column in payload]
        mac = hashlib.blake2b(key=self._key, digest_size=MARK_BYTES)
        for value in (*self._model, *astuple(claim), *digests):
            data = value if isinstance(value, bytes) else str(value).encode()
            mac.update(len(data).to_bytes(8, "little") + data)
        return mac.digest()

    def hold(self, id: int, claim: Claim, payload: Sequence[Column]) -> bool:
        """Whether the record of this id has a mark that was made here for this claim and these columns."""
        mark = self._stored.get(id)
        return mark is not None and hmac.compare_digest(mark, self.make(claim, payload))


def columns(payload: CheckpointPayload) -> tuple[Column, ...]:
    """Return the payload columns of a checkpoint as marks take them."""
    return payload.hidden.astype("<f4").tobytes(), payload.next_tokens, payload.states


class TokenDigests:
    """SHA-256 digests of everything before a place, whatever the segments are that it came in.

    The digests of segments will not do: two texts with one digest of that kind can be made, and then the rows of the
    one passed off as the other's.
    """

    def __init__(self, tree: SegmentTree) -> None:
        self._tree = tree
        self._before: dict[int, _Hash] = {}  # the hash of everything before a segment

    def until(self, cursor: Cursor) -> bytes:
        """Return the digest of all ids before a cursor."""
        hashed: _Hash = hashlib.sha256()
        runs = []
        for run in self._tree.runs_up(cursor):
            runs.append(run)
            if run.segment.id in self._before:
                hashed = self._before[run.segment.id]
                break
        for run in reversed(runs):
            self._before[run.segment.id] = hashed
            hashed = hashed.copy()
            hashed.update(run.segment.token_ids[: run.length].astype("<i4").tobytes())
        return hashed.digest()


class _Hash(Protocol):
    def copy(self) -> _Hash: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
