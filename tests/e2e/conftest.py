"""How the end-to-end tests run Dormouse: as processes of their own, or as a session in this one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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


def run_cli(*arguments: object, stdin: str = "") -> Run:
    """Run `dormouse-cli` in a process of its own."""
    command = [sys.executable, "-m", "tests.e2e.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONFAULTHANDLER": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # shows what each thread does
            raise AssertionError(process.communicate()[1]) from None
    assert "Traceback" not in stderr, stderr
    return Run(process.returncode, stdout, stderr)


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
