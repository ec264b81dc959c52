"""What a turn can do without: where that fails, it is noted, and the turn goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import engine.opening
import engine.session
from engine import events
from engine.cli.client import Client
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.donors import Donors
from engine.slot.file.slot_file import SlotFile
from engine.slot.prefix_index import PrefixIndex
from engine.slot.slot import Slot

SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=3)
SYSTEM = "Tea is at six. " * 40


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("by hand")


@pytest.fixture(name="client")
def _client(smollm2: Path, tmp_path: Path) -> Iterator[Client]:
    client = Client(kernels=None, n_threads=None, warn=pytest.fail, library=tmp_path / "library")
    client.wait(client.session.load_model(smollm2))
    yield client
    client.session.close()


def opened(client: Client, path: Path) -> int:
    job = client.session.open(path)
    client.wait(job)
    assert job.conversation is not None
    return job.conversation


def ask(client: Client, conversation: int, *, system: str | None = None) -> events.TurnFinished:
    turn = client.wait(client.session.send(conversation, "Who is asleep?", system=system, settings=SETTINGS))
    assert isinstance(turn, events.TurnFinished)
    return turn


def failures(client: Client, conversation: int) -> list[tuple[str, str]]:
    """Return what failed and how, as the log of a conversation tells it."""
    store = client.session._conversations[conversation].store
    log = store.call(SlotFile.log).result()
    return [(entry.detail["what"], entry.detail["error"]) for entry in log if entry.event == "failure"]


@pytest.mark.parametrize(
    ("owner", "name"), [(Donors, "supply"), (Slot, "adopt"), (PrefixIndex, "longest"), (PrefixIndex, "put")]
)
def test_a_turn_goes_on_without_donors(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    first = ask(client, opened(client, tmp_path / "first.slot"), system=SYSTEM)
    monkeypatch.setattr(owner, name, fail)
    second = opened(client, tmp_path / "second.slot")
    turn = ask(client, second, system=SYSTEM)
    assert (turn.token_ids, turn.receipt.donor) == (first.token_ids, None)
    assert failures(client, second) == [("sharing", "ZeroDivisionError: by hand")]


def test_a_donor_that_fails_half_way_leaves_nothing_behind(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(client, opened(client, tmp_path / "first.slot"), system=SYSTEM)
    adopt = Slot.adopt

    def adopt_and_fail(*args: object, **kwargs: object) -> bool:
        adopt(*args, **kwargs)  # type: ignore[arg-type]
        raise ZeroDivisionError("by hand")

    second = opened(client, tmp_path / "second.slot")
    with monkeypatch.context() as patch:
        patch.setattr(Slot, "adopt", adopt_and_fail)
        turn = ask(client, second, system=SYSTEM)
    assert turn.token_ids == first.token_ids
    client.wait(client.session.close_conversation(second))
    again = client.wait(client.session.wake(opened(client, tmp_path / "second.slot")))
    assert isinstance(again, events.Woken)
    assert again.prompt_n <= 1
    assert again.reason == "none"


def test_a_turn_goes_on_after_waking_failed(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = opened(client, tmp_path / "a.slot")
    ask(client, conversation)
    with monkeypatch.context() as patch:
        patch.setattr(engine.session, "known_models", fail)
        waking = client.session.wake(conversation)
        turn = client.session.send(conversation, "And now?", settings=SETTINGS)
        with pytest.raises(RuntimeError, match="by hand"):
            client.wait(waking)
        assert isinstance(client.wait(turn), events.TurnFinished)
    assert failures(client, conversation) == [("waking", "ZeroDivisionError: by hand")]


def test_a_conversation_is_read_whatever_its_turns_cost(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = opened(client, tmp_path / "a.slot")
    ask(client, conversation)
    client.wait(client.session.close_conversation(conversation))
    monkeypatch.setattr(engine.opening, "known_models", fail)
    event = client.wait(client.session.open(tmp_path / "a.slot"))
    assert isinstance(event, events.Opened)
    assert event.transcript.path()[0].text == "Who is asleep?"
    assert event.damage == ("What earlier turns cost can't be read (ZeroDivisionError: by hand).",)
