"""Jobs that wait behind another one: they can be taken back at once, and are not run later."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import events
from engine.cli.client import Client
from engine.errors import DormouseError
from engine.jobs import Job
from engine.slot.file.slot_file import SlotFile

SOON = 20.0  # seconds, for a machine that has other things to do


@pytest.fixture(name="client")
def _client() -> Iterator[Client]:
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    yield client
    client.session.close()


@pytest.fixture(name="gate")
def _gate(client: Client) -> Iterator[threading.Event]:
    """Keep the engine's thread busy, as a long reply in another conversation does, until the gate is opened."""
    entered, gate = threading.Event(), threading.Event()

    def wait(_: Job) -> None:
        entered.set()
        gate.wait()

    client.session._submit(None, wait)
    assert entered.wait(SOON)
    yield gate
    gate.set()


def opened(client: Client, path: Path | None) -> int:
    job = client.session.open(path)
    client.wait(job)
    assert job.conversation is not None
    return job.conversation


@pytest.mark.timeout(60)
def test_a_turn_that_waits_ends_at_once(client: Client, gate: threading.Event, tmp_path: Path) -> None:
    conversation = opened(client, tmp_path / "a.slot")
    job = client.session.send(conversation, "Hello?")
    job.cancel()
    saved, finished = client.follow(job)
    assert isinstance(saved, events.TurnSaved)
    assert isinstance(finished, events.TurnFinished)
    assert (finished.reply.id, finished.reply.finish_reason) == (saved.reply.id, "cancelled")
    receipt = finished.receipt
    assert (receipt.prompt_n, receipt.cache_n, receipt.predicted_n, receipt.kernels) == (0, 0, 0, "")
    job.cancel()  # again: nothing comes of it
    gate.set()
    client.wait(client.session.close_conversation(conversation))
    client.session.close()
    assert client._early == {}  # it was not run later
    assert client._events.empty()
    with SlotFile.open(tmp_path / "a.slot", read_only=True) as file:
        assert [(m.text, m.finish_reason) for m in file.messages()] == [("Hello?", None), ("", "cancelled")]
        assert file.receipts() == []


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("gate")
def test_a_turn_may_be_cancelled_before_its_words_are_saved(client: Client) -> None:
    conversation = opened(client, None)
    entered, gate = threading.Event(), threading.Event()

    def wait(_: SlotFile) -> None:
        entered.set()
        gate.wait()

    client.session._conversations[conversation].store.call(wait)
    assert entered.wait(SOON)
    jobs = [client.session.send(conversation, "Hello?"), client.session.regenerate(conversation)]
    for job in jobs:
        job.cancel()
    gate.set()
    for job in jobs:
        assert [type(event) for event in client.follow(job)] == [events.TurnSaved, events.TurnFinished]


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("gate")
def test_a_turn_that_can_not_begin_says_so_at_once(client: Client, tmp_path: Path) -> None:
    opening = client.session.open(tmp_path)
    assert opening.conversation is not None
    with pytest.raises(DormouseError, match="not a file"):
        client.wait(client.session.send(opening.conversation, "Hello?"))
    job = client.session.edit(opened(client, None), 99, "Hello?")
    job.cancel()
    with pytest.raises(DormouseError, match="not one of yours"):
        client.wait(job)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["a" * 5000 + ".slot", "/".join(["a" * 200] * 30) + ".slot"])
def test_a_name_that_no_file_can_have_is_told_in_a_sentence(client: Client, tmp_path: Path, name: str) -> None:
    with pytest.raises(DormouseError):  # of which the client makes another error if nobody foresaw it
        client.wait(client.session.open(tmp_path / name))


@pytest.mark.timeout(60)
def test_whatever_waits_can_be_taken_back(client: Client, gate: threading.Event, tmp_path: Path) -> None:
    session, conversation = client.session, opened(client, None)
    jobs = [
        session.wake(conversation),
        session.save_as(conversation, tmp_path / "b.slot"),
        session.close_conversation(conversation),
    ]
    loading = session.load_model(tmp_path / "there-is-none.gguf")
    for job in (*jobs, loading):
        job.cancel()
    assert [type(client.wait(job)) for job in jobs] == [events.Cancelled] * 3
    assert isinstance(client.wait(loading), events.LoadCancelled)
    gate.set()
    client.wait(session.close_conversation(conversation))  # it is open still
    assert not (tmp_path / "b.slot").exists()


@pytest.mark.timeout(60)
def test_what_waits_for_a_file_can_be_taken_back(client: Client, tmp_path: Path) -> None:
    conversation = opened(client, tmp_path / "a.slot")
    entered, gate = threading.Event(), threading.Event()

    def wait(_: SlotFile) -> None:
        entered.set()
        gate.wait()

    client.session._conversations[conversation].store.call(wait)
    assert entered.wait(SOON)
    job = client.session.select(conversation, 1)
    job.cancel()
    assert isinstance(client.wait(job), events.Cancelled)
    gate.set()


@pytest.mark.timeout(60)
def test_the_end_takes_back_what_waits_but_not_what_is_to_be_saved(tmp_path: Path) -> None:
    told: list[events.Event] = []
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    conversation = opened(client, tmp_path / "a.slot")
    session = client.session
    session._emit = told.append
    entered, stopped = threading.Event(), threading.Event()

    def reply(job: Job) -> None:
        entered.set()
        while not stopped.is_set():
            stopped.wait(0.01)
            job.check()

    session._submit(None, reply)
    assert entered.wait(SOON)
    loading = session.load_model(tmp_path / "there-is-none.gguf")
    turn = session.send(conversation, "Hello?")
    saving = session.save_as(conversation, tmp_path / "b.slot")
    session.close()
    outcomes = {event.job: type(event) for event in told if isinstance(event, events.Outcome)}
    assert outcomes[loading.id] is events.LoadCancelled
    assert outcomes[turn.id] is events.TurnFinished
    assert outcomes[saving.id] is events.SavedAs
