"""The session: events in order, cancelling, several conversations, waking beforehand, saving elsewhere."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Timer

import pytest

from engine import events
from engine.cli.client import Client
from engine.errors import DormouseError
from engine.jobs import Job
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import Session, TurnSettings
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify

SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=6)
LONG = "The hare had tea with the dormouse. " * 150
N_UBATCH = 256


@pytest.fixture(scope="module", name="client")
def _client(tiny_llama: Path) -> Iterator[Client]:
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    client.wait(client.session.load_model(tiny_llama, EngineSettings(n_ubatch=N_UBATCH)))
    yield client
    client.session.close()


@pytest.fixture(name="conversation")
def _conversation(client: Client) -> Iterator[int]:
    conversation = opened(client, None)
    yield conversation
    client.wait(client.session.close_conversation(conversation))


def opened(client: Client, path: Path | None) -> int:
    job = client.session.open(path)
    client.wait(job)
    assert job.conversation is not None
    return job.conversation


def finished(client: Client, job: Job) -> events.TurnFinished:
    last = client.wait(job)
    assert isinstance(last, events.TurnFinished)
    return last


def test_a_turn_tells_its_steps_in_order(client: Client, conversation: int) -> None:
    told = list(client.follow(client.session.send(conversation, LONG[:2000], system="Be brief.", settings=SETTINGS)))
    names = [type(event).__name__ for event in told]
    runs = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    assert runs == ["TurnSaved", "PrefillStarted", "PrefillProgress", "TokenGenerated", "TurnFinished"]
    started, progress = told[1], [e for e in told if isinstance(e, events.PrefillProgress)]
    assert isinstance(started, events.PrefillStarted)
    assert [p.done for p in progress] == sorted({p.done for p in progress})
    assert progress[0].done == started.cache_n == 0
    assert progress[-1].done == progress[-1].total == started.prompt_n
    last = told[-1]
    assert isinstance(last, events.TurnFinished)
    text = "".join(e.text for e in told if isinstance(e, events.TokenGenerated))
    assert text == last.reply.text
    saved = told[0]
    assert isinstance(saved, events.TurnSaved)
    assert [m.role for m in saved.transcript.path()] == ["system", "user", "assistant"]
    assert saved.reply.finish_reason == "pending"


@contextmanager
def cancelled(client: Client, when: Callable[[events.Event], bool]) -> Iterator[SimpleQueue[Job]]:
    """Cancel the job that is put into the queue at an event: in the engine's thread, which can't go on meanwhile."""
    jobs: SimpleQueue[Job] = SimpleQueue()
    pass_on = client.session._emit

    def tell(event: events.Event) -> None:
        if when(event):
            jobs.get().cancel()
        pass_on(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.session, "_emit", tell)
        yield jobs


def test_cancelling_in_prefill_is_quick_and_keeps_what_was_read(client: Client, conversation: int) -> None:
    def is_under_way(event: events.Event) -> bool:
        return isinstance(event, events.PrefillProgress) and event.done == 2 * N_UBATCH

    with cancelled(client, is_under_way) as jobs:
        job = client.session.send(conversation, LONG, settings=SETTINGS)
        jobs.put(job)
        turn = finished(client, job)
    assert turn.reply.finish_reason == "cancelled"
    assert turn.reply.text == ""
    assert turn.receipt.prompt_n == 2 * N_UBATCH
    again = finished(client, client.session.regenerate(conversation, settings=SETTINGS))
    assert again.receipt.cache_n == 2 * N_UBATCH
    assert again.reply.finish_reason == "length"


def test_cancelling_in_decode_keeps_what_was_said(client: Client, conversation: int) -> None:
    n_said = itertools.count(1)

    def is_under_way(event: events.Event) -> bool:
        return isinstance(event, events.TokenGenerated) and next(n_said) == 5

    with cancelled(client, is_under_way) as jobs:
        job = client.session.send(conversation, "Count to a hundred.", settings=TurnSettings(SETTINGS.sampling))
        jobs.put(job)
        turn = finished(client, job)
    assert turn.reply.finish_reason == "cancelled"
    assert len(turn.token_ids) == 5
    assert turn.reply.text
    on = finished(client, client.session.send(conversation, "Go on.", settings=SETTINGS))
    assert on.receipt.reason == "none"
    assert on.receipt.prompt_n < 40


def test_a_job_that_was_cancelled_before_it_began_does_nothing(client: Client, conversation: int) -> None:
    first = client.session.send(conversation, "Hello.", settings=SETTINGS)
    second = client.session.send(conversation, "And again.", settings=SETTINGS)
    second.cancel()
    assert finished(client, first).reply.finish_reason == "length"
    assert finished(client, second).reply.finish_reason == "cancelled"
    third = finished(client, client.session.send(conversation, "Still here?", settings=SETTINGS))
    assert third.receipt.reason == "none"


def test_conversations_do_not_touch_each_other(client: Client, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    conversations = [opened(client, tmp_path / f"{name}.slot") for name in names]
    alone = opened(client, None)
    turns = ["Hello.", "What is your name?", "Tell me more."]
    expected = [finished(client, client.session.send(alone, turn, settings=SETTINGS)) for turn in turns]
    jobs = [client.session.send(c, turn, settings=SETTINGS) for turn in turns for c in conversations]
    results = [finished(client, job) for job in jobs]
    for i, result in enumerate(results):
        assert result.token_ids == expected[i // 3].token_ids
        assert result.logits_xxh3 == expected[i // 3].logits_xxh3
        assert result.receipt.prompt_n == expected[i // 3].receipt.prompt_n
    for conversation in (*conversations, alone):
        client.wait(client.session.close_conversation(conversation))
    assert all(verify(tmp_path / f"{name}.slot") == [] for name in names)


def test_waking_beforehand_says_what_the_next_turn_costs(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.slot"
    conversation = opened(client, path)
    turn = finished(client, client.session.send(conversation, "Hello.", settings=SETTINGS))
    client.wait(client.session.close_conversation(conversation))
    conversation = opened(client, path)
    woken = client.wait(client.session.wake(conversation))
    assert isinstance(woken, events.Woken)
    assert (woken.source, woken.reason) == ("restored", "none")
    assert woken.prompt_n <= 1  # the last sampled token
    assert [model.architecture for model in woken.models] == ["llama"]
    assert woken.cache_n == turn.receipt.prompt_n + turn.receipt.predicted_n - 1
    on = finished(client, client.session.send(conversation, "Go on.", settings=SETTINGS))
    assert on.receipt.source == "restored"  # the receipt tells of the turn, however early its state was read
    assert on.receipt.cache_n == woken.cache_n
    client.wait(client.session.close_conversation(conversation))


def test_waking_an_empty_conversation_costs_nothing(client: Client, conversation: int) -> None:
    woken = client.wait(client.session.wake(conversation))
    assert isinstance(woken, events.Woken)
    assert (woken.cache_n, woken.prompt_n, woken.source, woken.reason) == (0, 0, "cold", "new_chat")


def test_saving_elsewhere_goes_on_there(client: Client, tmp_path: Path) -> None:
    conversation = opened(client, None)
    finished(client, client.session.send(conversation, "Hello.", settings=SETTINGS))
    saved = client.wait(client.session.save_as(conversation, tmp_path / "kept.slot"))
    assert isinstance(saved, events.SavedAs)
    on = finished(client, client.session.send(conversation, "Go on.", settings=SETTINGS))
    assert (on.receipt.source, on.receipt.reason) == ("live", "none")
    client.wait(client.session.close_conversation(conversation))
    assert verify(tmp_path / "kept.slot") == []
    with SlotFile.open(tmp_path / "kept.slot", read_only=True) as file:
        assert [m.text for m in file.messages() if m.role == "user"] == ["Hello.", "Go on."]


def test_failures_name_what_failed_and_the_session_goes_on(client: Client, tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match=r"is not a file|exist"):
        client.wait(client.session.open(tmp_path))
    with pytest.raises(DormouseError, match="closed"):
        client.session.send(12345, "Hello.")
    conversation = opened(client, None)
    with pytest.raises(DormouseError, match="no message 99"):
        client.wait(client.session.select(conversation, 99))
    with pytest.raises(DormouseError, match="not one of yours"):
        client.wait(client.session.edit(conversation, 99, "x"))
    assert finished(client, client.session.send(conversation, "Hello.", settings=SETTINGS)).reply.text
    client.wait(client.session.close_conversation(conversation))


def test_without_a_model_the_words_are_kept(tmp_path: Path) -> None:
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    conversation = opened(client, tmp_path / "a.slot")
    with pytest.raises(DormouseError, match="No model is loaded"):
        client.wait(client.session.send(conversation, "Hello?", settings=SETTINGS))
    client.session.close()
    with SlotFile.open(tmp_path / "a.slot", read_only=True) as file:
        assert [(m.role, m.text) for m in file.messages()] == [("user", "Hello?"), ("assistant", "")]


def test_closing_in_the_middle_of_a_prefill_saves_everything(tiny_llama: Path, tmp_path: Path) -> None:
    begun, closing = Event(), Event()

    def tell(event: events.Event) -> None:
        if isinstance(event, events.PrefillProgress):
            begun.set()
            closing.wait()

    session = Session(tell)
    session.load_model(tiny_llama)
    job = session.open(tmp_path / "a.slot")
    assert job.conversation is not None
    session.send(job.conversation, LONG)
    begun.wait()
    Timer(0.1, closing.set).start()
    session.close()
    session.close()
    assert verify(tmp_path / "a.slot") == []
    with SlotFile.open(tmp_path / "a.slot", read_only=True) as file:
        assert [(m.text, m.finish_reason) for m in file.messages()] == [(LONG, None), ("", "cancelled")]
