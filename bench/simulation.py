"""Replay of long conversations, to count what two policies of keeping checkpoints make a model read again.

Messages are runs of tokens that have nothing in common with other versions of themselves; an edit therefore costs its
own tokens under any policy, and only what is read beside them is counted. Rows of full attention are left out: such
memory can be cut back anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Literal, Protocol

from bench.llama_server_slot import ServerSettings, ServerSlot
from engine.slot.records import CheckpointReason
from engine.slot.retention import Place, Retention, RowCost

Action = Literal["regenerate", "edit", "branch_back"]

_SHARES: dict[Action, float] = {"regenerate": 0.5, "edit": 0.3, "branch_back": 0.2}
_USER_TOKENS, _REPLY_TOKENS = (20, 200), (50, 500)
_PAYLOAD_NBYTES = 4096  # of a checkpoint: the final hidden state and the next-token digest


@dataclass(frozen=True)
class SimulatedMemory:
    """A kind of memory that can't be cut back: the last `n_swa` rows, or a state."""

    name: str
    n_swa: int
    row_nbytes: int
    state_nbytes: int

    @property
    def checkpoint_nbytes(self) -> int:
        """Bytes of a checkpoint that shares nothing with others."""
        return self.n_swa * self.row_nbytes + self.state_nbytes


MEMORIES = (
    SimulatedMemory("sliding_window", n_swa=512, row_nbytes=15_360, state_nbytes=0),
    SimulatedMemory("recurrent", n_swa=0, row_nbytes=0, state_nbytes=20 << 20),
)


@dataclass(frozen=True)
class Message:
    """A message of the tree; `n_tokens` from the root to its end."""

    id: int
    parent: Message | None
    n_tokens: int
    is_user: bool

    @property
    def start(self) -> int:
        """Tokens before it."""
        return self.parent.n_tokens if self.parent else 0

    def path(self) -> list[Message]:
        """Return the messages from the first to this one."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]


class Policy(Protocol):
    """Counts what a model evaluates."""

    def prompt(self, user: Message) -> int:
        """Evaluate what is not known of the prompt that ends with a user message; return how many tokens that are."""

    def reply(self, reply: Message) -> None:
        """Generate the reply to it."""


class KeepWorth:
    """This engine's policy: what is dropped is decided by `Retention`."""

    def __init__(self, memory: SimulatedMemory, budget: int) -> None:
        self._nbytes = _PAYLOAD_NBYTES + memory.state_nbytes
        self._rows = [RowCost(memory.row_nbytes, memory.n_swa)] if memory.n_swa else []
        self._budget = budget
        self._places: dict[int, Place] = {}

    def prompt(self, user: Message) -> int:
        path = user.path()
        kept = [message.n_tokens for message in path if self._is_kept(message)]
        n_past = max(kept, default=0)
        for message in path:
            if message.n_tokens > n_past:
                self._checkpoint(message)
        return user.n_tokens - n_past

    def reply(self, reply: Message) -> None:
        self._checkpoint(reply)

    def _is_kept(self, message: Message) -> bool:
        return message.id in self._places and self._places[message.id].nbytes > 0

    def _checkpoint(self, message: Message) -> None:
        reason: CheckpointReason = "prompt_end" if message.is_user else "message_end"
        parent = message.parent.id if message.parent else None
        self._places[message.id] = Place(message.id, parent, message.n_tokens, reason, self._nbytes)
        retention = Retention(list(self._places.values()), self._rows, live=message.id, rewindable=False)
        while retention.nbytes > self._budget and (dropped := retention.drop()):
            place = self._places[dropped.id]
            self._places[place.id] = Place(place.id, place.parent, place.n_tokens, place.reason)


class LlamaServer:
    """llama-server's policy, in one slot."""

    def __init__(self, settings: ServerSettings) -> None:
        self._slot = ServerSlot(settings)
        self._live: Message | None = None

    def prompt(self, user: Message) -> int:
        path = user.path()
        live = {message.id for message in self._live.path()} if self._live else set()
        n_common = max((message.n_tokens for message in path if message.id in live), default=0)
        if self._live is not None:
            n_common = min(n_common, self._live.n_tokens - 1)  # the last token of a reply is never evaluated
        return self._slot.prompt(n_common, user.n_tokens, [m.start for m in path if m.is_user])

    def reply(self, reply: Message) -> None:
        self._slot.generate(reply.n_tokens - reply.start - 1)
        self._live = reply


class Conversation:
    """A person who writes until the conversation is long, and then goes back and forth in it."""

    def __init__(self, policy: Policy, *, seed: int) -> None:
        self._policy = policy
        self._random = Random(seed)
        self._tips: list[Message] = []  # newest last; the last one is current
        self._n_messages = 0

    def replay(self, n_tokens: int, n_actions: int) -> Iterator[tuple[Action, int]]:
        """Grow to `n_tokens`; yield what is done then, and the tokens read again for it."""
        while not self._tips or self._tips[-1].n_tokens < n_tokens:
            self._answer(self._add(self._tips[-1] if self._tips else None, is_user=True))
        for _ in range(n_actions):
            (action,) = self._random.choices(list(_SHARES), list(_SHARES.values()))
            tip = self._tips[-1]
            users = [message for message in tip.path() if message.is_user]
            if action == "branch_back" and len(self._tips) > 1:
                chosen = self._random.choice(self._tips[:-1])
                yield action, self._answer(self._add(chosen, is_user=True))
            elif action == "edit":
                yield action, self._answer(self._add(self._random.choice(users).parent, is_user=True))
            else:
                yield "regenerate", self._answer(users[-1])

    def _answer(self, user: Message) -> int:
        """Reply to a message; return the tokens that were read beside it, or at all if it is not new."""
        is_new = user.id == self._n_messages
        n_evaluated = self._policy.prompt(user)
        reply = self._add(user, is_user=False)
        self._policy.reply(reply)
        self._tips = [tip for tip in self._tips if tip is not user.parent] + [reply]
        return max(0, n_evaluated - (user.n_tokens - user.start if is_new else 0))

    def _add(self, parent: Message | None, *, is_user: bool) -> Message:
        self._n_messages += 1
        n = self._random.randint(*(_USER_TOKENS if is_user else _REPLY_TOKENS))
        return Message(self._n_messages, parent, n + (parent.n_tokens if parent else 0), is_user)


@dataclass(frozen=True)
class Comparison:
    """Mean tokens read again, for each action: by this engine and by llama-server with the same bytes."""

    memory: str
    n_tokens: int
    n_ctx_checkpoints: int
    checkpoint_min_step: int
    ours: dict[Action, float]
    theirs: dict[Action, float]


def compare(
    memory: SimulatedMemory, settings: ServerSettings, *, n_tokens: int, seeds: int, n_actions: int
) -> Comparison:
    """Replay the same conversations under both policies."""
    budget = settings.n_ctx_checkpoints * memory.checkpoint_nbytes

    def mean(policy: type[KeepWorth] | type[LlamaServer]) -> dict[Action, float]:
        counts: dict[Action, list[int]] = defaultdict(list)
        for seed in range(seeds):
            chosen = KeepWorth(memory, budget) if policy is KeepWorth else LlamaServer(settings)
            for action, n in Conversation(chosen, seed=seed).replay(n_tokens, n_actions):
                counts[action].append(n)
        return {action: round(fmean(counts[action]), 1) for action in _SHARES if counts[action]}

    return Comparison(
        memory.name,
        n_tokens,
        settings.n_ctx_checkpoints,
        settings.checkpoint_min_step,
        ours=mean(KeepWorth),
        theirs=mean(LlamaServer),
    )
