"""Conversations with tiny models, told step by step: what a test and another process both do."""

from dataclasses import dataclass
from pathlib import Path

from engine import events
from engine.cli.client import Client
from engine.jobs import Job
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.transcript import Transcript
from tests.instruction_sets import stand_in

SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=4)
ENGINE = EngineSettings(n_ubatch=32)
TURNS = ["the hare was at tea", "and so was the mouse that slept", "wake it up"]
NEXT = "who asked"
TEN = "abcdefghij"


@dataclass(frozen=True)
class Said:
    """What must be equal, awake or woken."""

    prompt_n: int
    cache_n: int
    token_ids: tuple[int, ...]
    logits_xxh3: str | None


class Chat:
    """A conversation that can be told to sleep."""

    def __init__(self, client: Client, path: Path | None) -> None:
        self._client, self._path = client, path
        self._open()

    def _open(self) -> None:
        job = self._client.session.open(self._path)
        self._client.wait(job)
        assert job.conversation is not None
        self._conversation = job.conversation

    def close(self) -> None:
        self._client.wait(self._client.session.close_conversation(self._conversation))

    def sleep_and_wake(self) -> None:
        if self._path is not None:
            self.close()
            self._open()

    def send(self, text: str) -> Said:
        return self._turn(self._client.session.send(self._conversation, text, settings=SETTINGS))

    def regenerate(self) -> Said:
        return self._turn(self._client.session.regenerate(self._conversation, settings=SETTINGS))

    def edit(self, number: int, text: str) -> Said:
        message = self._transcript.user_messages()[number].id
        return self._turn(self._client.session.edit(self._conversation, message, text, settings=SETTINGS))

    def back_to(self, tip: int) -> None:
        self._client.wait(self._client.session.select(self._conversation, tip))

    def _turn(self, job: Job) -> Said:
        for event in self._client.follow(job):
            if isinstance(event, events.TurnSaved):
                self._transcript: Transcript = event.transcript
        assert isinstance(event, events.TurnFinished)
        self.tip = event.reply.id
        return Said(event.receipt.prompt_n, event.receipt.cache_n, event.token_ids, event.logits_xxh3)


def begin(chat: Chat) -> dict[str, Said]:
    """Have the first turns."""
    return {text: chat.send(text) for text in TURNS}


def go_on(chat: Chat) -> dict[str, Said]:
    """Regenerate, go on, edit late and early, go back; then ten more turns. The conversation sleeps in between."""
    said = {"regenerated": chat.regenerate()}
    chat.sleep_and_wake()
    said["next"] = chat.send(NEXT)
    trunk = chat.tip
    chat.sleep_and_wake()
    said["edited late"] = chat.edit(2, "wake it up with the butter")
    chat.sleep_and_wake()
    said["edited early"] = chat.edit(1, "and so was the other one")
    chat.sleep_and_wake()
    chat.back_to(trunk)
    said["back"] = chat.send("and then")
    chat.sleep_and_wake()
    return said | {turn: chat.send(turn) for turn in TEN}


def wake_and_go_on(model: Path, slot: Path) -> dict[str, Said]:
    """Do `go_on` with a conversation that another process began."""
    stand_in()
    client = Client(kernels=None, n_threads=1, warn=_refuse)
    client.wait(client.session.load_model(model, ENGINE))
    chat = Chat(client, slot)
    said = go_on(chat)
    chat.close()
    client.session.close()
    return said


def _refuse(text: str) -> None:
    raise AssertionError(text)
