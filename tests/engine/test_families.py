"""A conversation with a tiny model of every architecture: awake all the time, and asleep in a file in between.

What a turn after the sleep evaluates and says is compared with what the same turn does where nothing ever slept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine import events
from engine.cli.client import Client
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import Job, TurnSettings
from engine.slot.transcript import Transcript
from tests.models import full_attention, recurrent, windowed

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS
SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=4)
ENGINE = EngineSettings(n_ubatch=32)
TURNS = ["the hare was at tea", "and so was the mouse that slept", "wake it up"]
NEXT = "who asked"


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


@pytest.fixture(scope="module", name="client")
def _client() -> Iterator[Client]:
    client = Client(kernels=None, n_threads=1, warn=pytest.fail)
    yield client
    client.session.close()


@pytest.fixture(params=MODELS, name="new_chat")
def _new_chat(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> Iterator[Callable[..., Chat]]:
    model = MODELS[request.param]().write(tmp_path / "model.gguf")
    client.wait(client.session.load_model(model, ENGINE))
    chats = []

    def new_chat(path: Path | None = None) -> Chat:
        chats.append(Chat(client, path))
        return chats[-1]

    yield new_chat
    for chat in chats:
        chat.close()


def test_what_slept_goes_on_as_if_it_had_not(new_chat: Callable[..., Chat], tmp_path: Path) -> None:
    def life(chat: Chat) -> dict[str, Said]:
        said = {text: chat.send(text) for text in TURNS}
        chat.sleep_and_wake()
        said["regenerated"] = chat.regenerate()
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
        return said

    live, chat = life(new_chat(None)), new_chat(tmp_path / "a.slot")
    assert life(chat) == live
    assert live["regenerated"].prompt_n == 0
    assert live["regenerated"].token_ids == live[TURNS[-1]].token_ids
    for text, next_text in (("next", NEXT), ("back", "and then")):
        n_template = len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        assert live[text].prompt_n < len(next_text) + n_template
    # an edit re-reads nothing of the turns before the edited one
    first = live[TURNS[0]]
    assert live["edited early"].cache_n >= first.prompt_n + len(first.token_ids) - 1
    assert live["edited late"].cache_n > live["edited early"].cache_n

    chat.sleep_and_wake()
    last = live["back"]
    for turn in "abcdefghij":
        said = chat.send(turn)
        # all of the turn before but its last token, which no turn has evaluated yet
        assert said.cache_n >= last.cache_n + last.prompt_n + len(last.token_ids) - 1
        last = said
