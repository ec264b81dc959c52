"""Which checkpoints to keep within a budget of bytes: the decision alone, without a tensor or a file in sight.

Where the next prompt will go on from is not known, but how likely each place is: after the newest prompt (its reply
is written anew), at the end of an earlier message (the one behind it is edited), at the tip of another branch. What
is dropped is what costs the fewest expected tokens to read again for each byte that it frees. Age does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.slot.records import CheckpointReason

_REGENERATE, _EDIT, _BRANCH_BACK = 0.5, 0.3, 0.2  # how often people do what, when they do not just go on
_GO_ON = 4.0  # how much more often they do; it costs something only where the live place is not kept itself
_NOWHERE = 1 << 60


@dataclass(frozen=True)
class Place:
    """A place in the tree of what a model saw, `n_tokens` from the root, next below the place `parent`.

    `reason` says why there is or was a checkpoint; None for a mere fork. `nbytes` are those of the checkpoint without
    the rows that it refers to, 0 where there is none or none any more.
    """

    id: int
    parent: int | None
    n_tokens: int
    reason: CheckpointReason | None = None
    nbytes: int = 0


@dataclass(frozen=True)
class RowCost:
    """Bytes of one token's rows of a memory part, and how many of the last rows going on from a place needs."""

    row_nbytes: int
    window: int


@dataclass(frozen=True)
class Dropped:
    """A checkpoint that was given up, the bytes that it frees, and the tokens that each turn is expected to read more.

    The bytes are those of the checkpoint and of the rows that only it referred to.
    """

    id: int
    nbytes: int
    tokens: float


class Retention:
    """The kept checkpoints of a tree and the rows that they refer to, each row counted once.

    With memory that is `rewindable`, every place whose rows are kept can be gone on from; with other memory only the
    checkpoints can.
    """

    def __init__(self, places: Sequence[Place], rows: Iterable[RowCost], *, live: int | None, rewindable: bool) -> None:
        """Take places, parents before children; `live` is where the conversation stands: never dropped."""
        self._places = {place.id: place for place in places}
        self._rows = tuple(rows)
        self._live = live
        self._rewindable = rewindable
        self._kept = {place.id for place in places if place.nbytes}
        self._children: dict[int | None, list[int]] = defaultdict(list)
        for place in places:
            self._children[place.parent].append(place.id)
        self._nearest: dict[int, int] = {}  # length of the shortest kept checkpoint at or below a place
        for place in reversed(places):
            self._nearest[place.id] = place.n_tokens if place.nbytes else self._below(place.id)
        self._served: dict[int | None, float] = defaultdict(float)  # weight of the prompts that go on from a place
        self._expected = 0.0
        for id, weight in self._weights(places):
            server = self._server(id)
            self._served[server] += weight
            self._expected += weight * (self._n(id) - self._n(server))
        self._nbytes = sum(place.nbytes for place in places)
        self._nbytes += sum(self._edge_nbytes(place.id, self._nearest[place.id]) for place in places)

    @property
    def nbytes(self) -> int:
        """Bytes of the kept checkpoints and their rows."""
        return self._nbytes

    @property
    def expected_tokens(self) -> float:
        """Tokens that a turn which does not just go on is expected to read again."""
        return self._expected

    def drop(self) -> Dropped | None:
        """Give up the checkpoint that is worth least for its bytes; None when only the live one is left."""
        candidates = self._kept - {self._live}
        if not candidates:
            return None
        losses = {id: self._loss(id) for id in candidates}
        id = min(candidates, key=lambda id: (losses[id].tokens / losses[id].nbytes, id))
        loss = losses[id]
        self._kept.remove(id)
        for place, nearest in loss.nearest.items():
            self._nearest[place] = nearest
        for place in loss.orphans:
            self._served[loss.heir] += self._served.pop(place, 0.0)
        self._nbytes -= loss.nbytes
        self._expected += loss.tokens
        return Dropped(id, loss.nbytes, loss.tokens)

    def _loss(self, id: int) -> _Loss:
        """Return what dropping a checkpoint would change, from it upward to the next place that is kept anyway."""
        nbytes = self._places[id].nbytes
        nearest = {}
        orphans = []
        place: int | None = id
        below = self._below(id)
        while place is not None:
            nearest[place] = below
            nbytes += self._edge_nbytes(place, self._nearest[place]) - self._edge_nbytes(place, below)
            if below == _NOWHERE or (place == id and not self._rewindable):
                orphans.append(place)
            place = self._places[place].parent
            if place is None or place in self._kept:
                break
            below = min(nearest.get(child, self._nearest[child]) for child in self._children[place])
            if below == self._nearest[place]:
                break
        heir = place if self._rewindable else self._server(self._places[id].parent)
        tokens = sum(self._served[orphan] * (self._n(orphan) - self._n(heir)) for orphan in orphans)
        # without its final hidden state, the last token of a place is read again
        tokens += 0.0 if orphans else self._served[id]
        return _Loss(nbytes, tokens, nearest, orphans, heir)

    def _weights(self, places: Sequence[Place]) -> Iterable[tuple[int, float]]:
        """Return how likely the next prompt that does not just go on goes on from which place."""
        path = set(self._path(self._live))
        prompts = [id for id in self._path(self._live) if self._places[id].reason == "prompt_end"]
        ends = [place.id for place in places if place.reason in ("message_end", "interval")]
        here, elsewhere = [id for id in ends if id in path], [id for id in ends if id not in path]
        tips = [place.id for place in places if place.id != self._live and not self._children[place.id]]
        away = _BRANCH_BACK if elsewhere else 0.0  # an edit elsewhere follows going there
        yield from ((id, _GO_ON) for id in [self._live] if id is not None)
        for share, ids in (
            (_REGENERATE, prompts[:1]),
            (_EDIT * (1 - away), here),
            (_EDIT * away, elsewhere),
            (_BRANCH_BACK, tips),
        ):
            yield from ((id, share / len(ids)) for id in ids)

    def _path(self, id: int | None) -> Iterator[int]:
        """Yield the places from one up to the root."""
        while id is not None:
            yield id
            id = self._places[id].parent

    def _server(self, id: int | None) -> int | None:
        """Return the last place at or above a place from which one can go on, None for the root."""
        while id is not None and id not in self._kept:
            if self._rewindable and self._nearest[id] < _NOWHERE:
                break
            id = self._places[id].parent
        return id

    def _below(self, id: int) -> int:
        return min((self._nearest[child] for child in self._children[id]), default=_NOWHERE)

    def _edge_nbytes(self, id: int, nearest: int) -> int:
        """Return the bytes of the rows between a place and its parent that a checkpoint `nearest` below needs."""
        start, end = self._n(self._places[id].parent), self._n(id)
        return sum(cost.row_nbytes * max(0, end - max(start, nearest - cost.window)) for cost in self._rows)

    def _n(self, id: int | None) -> int:
        return 0 if id is None else self._places[id].n_tokens


@dataclass(frozen=True)
class _Loss:
    """What dropping a checkpoint changes: bytes and expected tokens; `nearest` of places; who serves `orphans` then."""

    nbytes: int
    tokens: float
    nearest: dict[int, int]
    orphans: list[int]
    heir: int | None
