"""Conversations that begin alike: the second one evaluates only what is its own."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import events
from engine.cli.client import Client
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from engine.slot.slot import Slot
from tests.slot_samples import write_conversation
from tests.strangers import forge_marks, forget_marks, substitute

STORY = (Path(__file__).parents[1] / "data" / "tea-party.txt").read_text(encoding="utf-8")
WORDS = " ".join(STORY.split())
SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=5)
ITS_OWN = 50  # tokens of a question and its template, at most: they are letters


class Person:
    """Asks one question in each of several conversations."""

    def __init__(self, model: Path, library: Path) -> None:
        self.library = library
        self.client = Client(kernels=None, n_threads=None, warn=pytest.fail, library=library)
        self.client.wait(self.client.session.load_model(model, EngineSettings(n_ubatch=128)))

    def open(self, path: Path | None) -> int:
        opening = self.client.session.open(path)
        self.client.wait(opening)
        assert opening.conversation is not None
        return opening.conversation

    def ask(self, conversation: int, text: str, *, system: str | None = None) -> events.TurnFinished:
        job = self.client.session.send(conversation, text, system=system, settings=SETTINGS)
        turn = self.client.wait(job)
        assert isinstance(turn, events.TurnFinished)
        return turn

    def ask_and_close(self, path: Path, text: str, *, system: str | None = None) -> events.TurnFinished:
        conversation = self.open(path)
        turn = self.ask(conversation, text, system=system)
        self.client.wait(self.client.session.close_conversation(conversation))
        return turn


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"], name="person")
def _person(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = Person(request.getfixturevalue(request.param), tmp_path_factory.mktemp("library"))
    yield person
    person.client.session.close()


@pytest.fixture(autouse=True)
def _empty_library(person: Person) -> Iterator[None]:
    yield
    shutil.rmtree(person.library)
    person.library.mkdir()


def test_a_long_system_message_is_read_once(person: Person, tmp_path: Path) -> None:
    system = WORDS[:5000]
    alone = person.ask(person.open(None), "What time is it?", system=system)
    first = person.ask_and_close(person.library / "first.slot", "Who is asleep?", system=system)
    second = person.ask_and_close(tmp_path / "second.slot", "What time is it?", system=system)
    assert (alone.receipt.donor, first.receipt.donor, second.receipt.donor) == (None, None, "first.slot")
    assert first.receipt.prompt_n > 900
    assert second.receipt.prompt_n < ITS_OWN
    assert (second.receipt.source, second.receipt.reason) == ("restored", "none")
    assert second.token_ids == alone.token_ids

    (person.library / "first.slot").unlink()  # what was taken is the second one's own now
    assert verify(tmp_path / "second.slot") == []
    with SlotFile.open(tmp_path / "second.slot", read_only=True) as file:
        assert [receipt.donor for receipt in file.receipts()] == ["first.slot"]
        (donation,) = [entry.detail for entry in file.log() if entry.event == "donation"]
        assert (donation["donor"], donation["n_tokens"]) == ("first.slot", second.receipt.cache_n)
    opened = person.open(tmp_path / "second.slot")
    again = person.client.wait(person.client.session.regenerate(opened, settings=SETTINGS))
    assert isinstance(again, events.TurnFinished)
    assert (again.receipt.prompt_n, again.receipt.donor) == (0, None)


def test_a_document_in_the_same_message_is_read_once(person: Person) -> None:
    document = f"{WORDS[:5000]} ### "
    person.ask_and_close(person.library / "0.slot", document + "Who is asleep?")
    turn = person.ask_and_close(person.library / "1.slot", document + "What time is it?")
    assert turn.receipt.donor == "0.slot"
    assert turn.receipt.prompt_n < ITS_OWN


def test_open_conversations_give_but_temporary_ones_never_do(person: Person, tmp_path: Path) -> None:
    system = WORDS[500:1500]
    opened = [person.open(path) for path in (None, tmp_path / "a.slot", tmp_path / "b.slot", None)]
    turns = [person.ask(conversation, f"Question {i}?", system=system) for i, conversation in enumerate(opened)]
    receipts = [turn.receipt for turn in turns]
    assert [receipt.donor for receipt in receipts[:3]] == [None, None, "a.slot"]
    assert receipts[3].donor in ("a.slot", "b.slot")
    assert receipts[1].prompt_n > 200 > ITS_OWN > receipts[2].prompt_n
    for conversation in opened:
        person.client.wait(person.client.session.close_conversation(conversation))


def test_files_that_are_no_use_are_passed_over(person: Person) -> None:
    library, system = person.library, WORDS[1000:2500]
    person.ask_and_close(library / "z.slot", "Hi.", system=system)
    whole = (library / "z.slot").read_bytes()
    write_conversation(library / "other model.slot")
    (library / "a.slot").write_bytes(whole[: len(whole) // 2])
    (library / "b.slot").write_bytes(b"dear diary" * 1000)
    (library / "c.slot").mkdir()
    damaged = bytearray(whole)
    places = slice(len(damaged) // 3, None, 4096)
    damaged[places] = b"\x55" * len(damaged[places])
    (library / "d.slot").write_bytes(damaged)
    shutil.copy(library / "z.slot", library / "locked.slot")
    with SlotFile.open(library / "locked.slot"):
        turn = person.ask_and_close(library / "new.slot", "Who is asleep?", system=system)
    assert (turn.receipt.donor, turn.receipt.reason) == ("z.slot", "none")
    assert turn.receipt.prompt_n < ITS_OWN


@pytest.mark.parametrize("change", [lambda _: None, forget_marks, forge_marks], ids=["kept", "gone", "forged"])
def test_state_of_another_text_in_the_library_is_not_taken(
    person: Person, tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the system prompt of a new chat, its state replaced by that of another text of the same length."""
    system, received = WORDS[2000:4000], person.library / "received.slot"
    alone = person.ask(person.open(None), "What time is it?", system=system)
    person.ask_and_close(received, "Who is asleep?", system=system)
    runtime = person.client.session._runtime
    assert runtime is not None
    substitute(received, [runtime], lambda ids: np.roll(ids, 1))
    change(received)
    asked: list[bool] = []

    def adopt(slot: Slot, *arguments: Any, **named: Any) -> bool:
        asked.append(_adopt(slot, *arguments, **named))
        return asked[-1]

    _adopt = Slot.adopt
    monkeypatch.setattr(Slot, "adopt", adopt)
    for name in "ab":
        turn = person.ask_and_close(tmp_path / f"{name}.slot", "What time is it?", system=system)
        assert turn.receipt.donor is None
        assert turn.receipt.cache_n == 0
        assert turn.token_ids == alone.token_ids
    # what has marks is read once, and not again until it changes
    assert asked == ([] if change is forget_marks else [False])
    os.utime(received)
    person.ask_and_close(tmp_path / "c.slot", "What time is it?", system=system)
    assert asked == ([] if change is forget_marks else [False, False])


def test_files_that_were_copied_from_elsewhere_give_nothing(
    person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = WORDS[4000:5000]
    person.ask_and_close(person.library / "0.slot", "Who is asleep?", system=system)
    monkeypatch.setenv("HOME", str(tmp_path / "of another person"))
    turn = person.ask_and_close(person.library / "1.slot", "What time is it?", system=system)
    assert turn.receipt.donor is None
    turn = person.ask_and_close(person.library / "2.slot", "What time is it?", system=system)
    assert turn.receipt.donor == "1.slot"


def test_small_gains_are_left_alone(person: Person) -> None:
    for name in "ab":
        turn = person.ask_and_close(person.library / f"{name}.slot", "Hello.")
        assert turn.receipt.donor is None
