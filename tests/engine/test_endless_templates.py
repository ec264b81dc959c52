"""A chat template without an end in a session: it can be stopped, and nothing else waits for it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import events
from engine.cli.client import Client
from engine.errors import DormouseError
from engine.jobs import Job
from engine.runtime import EngineSettings, Runtime
from engine.slot.file.slot_file import SlotFile
from engine.tokenizer import template_process
from engine.tokenizer.chat_template import FALLBACK
from tests.models import full_attention

ENDLESS = (
    "{% set s = 'x' * 1000000 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}"
)
SOMETIMES = f"{{% if messages[-1].content == 'endless' %}}{ENDLESS}{{% endif %}}{FALLBACK}"
FOR_LONG = "{{ " + "1 + " * 20000 + "1 }}"  # summed up while it is compiled

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(name="client")
def _client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(template_process, "SECONDS", 1000)  # no template ends by itself
    monkeypatch.setattr(template_process, "_PATIENCE", 1000)
    client = Client(kernels=None, n_threads=1, warn=pytest.fail)
    yield client
    client.session.close()


def written(folder: Path, template: str) -> Path:
    return full_attention.llama().never_ending().write(folder / "model.gguf", template=template)


def opened(client: Client, path: Path | None) -> int:
    job = client.session.open(path)
    client.wait(job)
    assert job.conversation is not None
    return job.conversation


def loaded(client: Client, folder: Path) -> Runtime:
    client.wait(client.session.load_model(written(folder, SOMETIMES), EngineSettings(n_ctx=512)))
    runtime = client.session._runtime
    assert runtime is not None
    return runtime


def wait_until_it_is_rendered(runtime: Runtime) -> None:
    process = runtime.template._process
    assert process is not None
    while not process._asking.locked():
        time.sleep(0.001)


def test_a_turn_can_be_stopped_and_another_one_follows(client: Client, tmp_path: Path) -> None:
    runtime, conversation = loaded(client, tmp_path), opened(client, tmp_path / "a.slot")
    job = client.session.send(conversation, "endless")
    wait_until_it_is_rendered(runtime)
    job.cancel()
    saved, finished = client.follow(job)
    assert isinstance(saved, events.TurnSaved)
    assert isinstance(finished, events.TurnFinished)
    assert (finished.reply.id, finished.reply.finish_reason) == (saved.reply.id, "cancelled")
    assert (finished.receipt.prompt_n, finished.receipt.cache_n, finished.receipt.kernels) == (0, 0, "")
    job = client.session.edit(conversation, saved.transcript.user_messages()[0].id, "Hello")
    for event in client.follow(job):
        if isinstance(event, events.TokenGenerated):
            job.cancel()
    assert isinstance(event, events.TurnFinished)
    assert event.receipt.predicted_n >= 1


def test_waking_can_be_stopped(client: Client, tmp_path: Path) -> None:
    runtime, conversation = loaded(client, tmp_path), opened(client, None)
    client.session._runtime = None
    with pytest.raises(DormouseError, match="No model is loaded"):
        client.wait(client.session.send(conversation, "endless"))
    client.session._runtime = runtime
    job = client.session.wake(conversation)
    wait_until_it_is_rendered(runtime)
    job.cancel()
    assert isinstance(client.wait(job), events.Cancelled)


def test_the_end_does_not_wait_for_it(client: Client, tmp_path: Path) -> None:
    runtime, conversation = loaded(client, tmp_path), opened(client, tmp_path / "a.slot")
    client.session.send(conversation, "endless")
    wait_until_it_is_rendered(runtime)
    assert client.session.close(engine_seconds=100) == []
    with SlotFile.open(tmp_path / "a.slot", read_only=True) as file:
        assert [(m.text, m.finish_reason) for m in file.messages()] == [("endless", None), ("", "cancelled")]


def test_the_process_ends_with_the_session_and_with_its_model(client: Client, tmp_path: Path) -> None:
    def child() -> object:
        runtime = client.session._runtime
        assert runtime is not None
        assert runtime.template._process is not None
        assert runtime.template._process._child is not None
        return runtime.template._process._child._process

    loaded(client, tmp_path)
    first = child()
    loaded(client, tmp_path)
    second = child()
    client.session.close()
    assert [process.returncode for process in (first, second)] == [-9, -9]


def test_loading_can_be_stopped_while_it_is_compiled(client: Client, tmp_path: Path) -> None:
    job = client.session.load_model(written(tmp_path, FOR_LONG))
    for event in client.follow(job):
        if isinstance(event, events.ModelLoading) and event.done == event.total:
            job.cancel()
    assert isinstance(event, events.LoadCancelled)


@pytest.mark.parametrize("template", [FOR_LONG, "{% for %}"])
def test_a_model_with_such_a_template_is_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(template_process, "SECONDS", 0.05)
    with pytest.raises(DormouseError, match="Another file of the same model may have a better one"):
        client.wait(client.session.load_model(written(tmp_path, template)))


def test_a_turn_that_it_ends_is_told(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(client, tmp_path)
    conversation = opened(client, None)
    monkeypatch.setattr(template_process, "SECONDS", 0.1)
    with pytest.raises(DormouseError, match="takes more time or memory than it may have"):
        client.wait(client.session.send(conversation, "endless"))


def test_jobs_are_told_apart(client: Client, tmp_path: Path) -> None:
    """While a template is waited for, what needs no model goes on."""
    runtime, conversation = loaded(client, tmp_path), opened(client, None)
    job: Job = client.session.send(conversation, "endless")
    wait_until_it_is_rendered(runtime)
    assert opened(client, tmp_path / "b.slot")
    job.cancel()
    client.wait(job)
