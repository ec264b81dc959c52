"""How the end-to-end tests run Dormouse: as processes of their own, or as a session in this one."""

import atexit
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from engine import events
from engine.cli.chat import turn_as_json
from engine.cli.client import Client
from engine.jobs import Job
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.transcript import Transcript
from tests.e2e.warm import WarmProcess

Turn = dict[str, Any]
TIMEOUT = 120  # seconds that a process may take


@dataclass(frozen=True)
class Run:
    """What a process said."""

    status: int
    stdout: str
    stderr: str

    @property
    def turns(self) -> list[Turn]:
        assert self.status == 0, self.stderr
        return [json.loads(line) for line in self.stdout.splitlines()]


_warm: list[WarmProcess] = []  # started when it is first needed


def run_cli(*arguments: object, stdin: str = "") -> Run:
    """Run `dormouse-cli` in a process of its own."""
    if not _warm:
        _warm.append(WarmProcess())
        atexit.register(_warm[0].close)
    with ExitStack() as files:
        given, stdout, stderr = (
            files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)
        )
        given.write(stdin)
        given.seek(0)
        pid = _warm[0].start([str(argument) for argument in arguments], given, stdout, stderr)
        try:
            status = _warm[0].wait(TIMEOUT)
        except TimeoutError:
            os.kill(pid, signal.SIGABRT)  # shows what each thread does
            status = _warm[0].wait(TIMEOUT)
        for file in (stdout, stderr):
            file.seek(0)
        run = Run(status, stdout.read(), stderr.read())
    assert "Traceback" not in run.stderr, run.stderr
    assert status != -signal.SIGABRT, run.stderr
    return run


Chat = Callable[..., list[Turn]]


@pytest.fixture(scope="session", name="chat")
def _chat() -> Chat:
    """Run `dormouse-cli chat --json`; lines of `say` are typed in."""

    def chat(model: Path, *options: object, say: Sequence[str] = ()) -> list[Turn]:
        return run_cli("chat", "--model", model, "--json", *options, stdin="\n".join(say)).turns

    return chat


class LiveChat:
    """A greedy conversation in this process that is never closed and never on disk."""

    def __init__(self, model: Path) -> None:
        self._client = Client(kernels=None, n_threads=None, warn=pytest.fail)
        self._client.wait(self._client.session.load_model(model))
        opening = self._client.session.open(None)
        self._client.wait(opening)
        assert opening.conversation is not None
        self._conversation = opening.conversation
        self._transcript: Transcript | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.session.close()

    def send(self, text: str, *, max_tokens: int) -> Turn:
        return self._turn(self._client.session.send(self._conversation, text, settings=_greedy(max_tokens)))

    def regenerate(self, *, max_tokens: int) -> Turn:
        return self._turn(self._client.session.regenerate(self._conversation, settings=_greedy(max_tokens)))

    def edit(self, number: int, text: str, *, max_tokens: int) -> Turn:
        assert self._transcript
        message = self._transcript.user_messages()[number - 1].id
        return self._turn(self._client.session.edit(self._conversation, message, text, settings=_greedy(max_tokens)))

    def _turn(self, job: Job) -> Turn:
        for event in self._client.follow(job):
            if isinstance(event, events.TurnSaved):
                self._transcript = event.transcript
        assert isinstance(event, events.TurnFinished)
        return turn_as_json(event)


def _greedy(max_tokens: int) -> TurnSettings:
    return TurnSettings(SamplingParameters(temperature=0), max_tokens)


@pytest.fixture(scope="module", name="client")
def _client() -> Iterator[Client]:
    """A session in this process, told from outside what to load."""
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    yield client
    client.session.close()
