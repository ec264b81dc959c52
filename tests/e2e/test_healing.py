"""Damage that happens to a conversation in use: no word is lost, it is told with the right reason, and healed once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine import events
from engine.cli.client import Client
from engine.slot.file.failures import DamagedError
from engine.slot.file.record_store import RecordStore
from engine.slot.file.schema import PAGE_SIZE
from engine.slot.file.verify import verify
from tests.families import ENGINE, SETTINGS
from tests.models import full_attention, recurrent, windowed

MODELS = {
    "full attention": full_attention.llama,
    "sliding window": windowed.gemma3,
    "hybrid": recurrent.lfm2,
}
TURNS = ["the hare was at tea", "and so was the mouse " * 12, "wake it up"]


class Household:
    """A session whose warnings are kept."""

    def __init__(self, folder: Path) -> None:
        self.warnings: list[str] = []
        self.client = Client(kernels=None, n_threads=1, warn=self.warnings.append)
        self.path = folder / "chat.slot"

    def open(self) -> tuple[int, events.Opened]:
        job = self.client.session.open(self.path)
        opened = self.client.wait(job)
        assert isinstance(opened, events.Opened)
        assert job.conversation is not None
        return job.conversation, opened

    def send(self, conversation: int, text: str) -> events.TurnFinished:
        finished = self.client.wait(self.client.session.send(conversation, text, settings=SETTINGS))
        assert isinstance(finished, events.TurnFinished)
        return finished

    def close(self, conversation: int) -> None:
        self.client.wait(self.client.session.close_conversation(conversation))


@pytest.fixture(name="house", params=MODELS)
def _house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Household]:
    house = Household(tmp_path)
    house.client.wait(house.client.session.load_model(MODELS[request.param]().write(tmp_path / "m.gguf"), ENGINE))
    conversation, _ = house.open()
    for turn in TURNS:
        house.send(conversation, turn)
    house.close(conversation)
    yield house
    house.client.session.close()


def run(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)


def invert_first_page(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    data = bytearray(path.read_bytes())
    start = (page - 1) * PAGE_SIZE
    data[start : start + 4096] = bytes(byte ^ 0xFF for byte in data[start : start + 4096])
    path.write_bytes(data)


def blank_second_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


@pytest.mark.parametrize("table", ["content", "receipt", "model", "log", "segment", "checkpoint", "rows"])
def test_a_side_table_that_breaks_between_two_turns_costs_no_reply(house: Household, table: str) -> None:
    invert_first_page(house.path, table)
    conversation, opened = house.open()
    assert len(opened.damage) == 1
    texts = [message.text for message in opened.transcript.path()]
    said = house.send(conversation, "go on")
    house.close(conversation)
    assert verify(house.path) == []
    conversation, again = house.open()
    assert again.damage == ()
    assert [message.text for message in again.transcript.path()] == [*texts, "go on", said.reply.text]
    house.close(conversation)


@pytest.mark.parametrize("table", ["content", "receipt"])
def test_the_reply_is_saved_where_its_account_can_not_be(
    house: Household, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = house.open()
    insert = RecordStore.insert

    def failing(self: RecordStore, into: str, *args: Any, **kwargs: Any) -> int:
        if into == table:
            raise DamagedError("A page is damaged.")
        return insert(self, into, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(RecordStore, "insert", failing)
        said = house.send(conversation, "go on")
    assert any("The reply is saved, but not what it cost." in warning for warning in house.warnings)
    house.close(conversation)
    conversation, opened = house.open()
    assert opened.transcript.path()[-1] == said.reply
    assert house.send(conversation, "and on").reply.finish_reason in ("stop", "length")
    house.close(conversation)


@pytest.mark.parametrize("created", ["1e300", "-5"])
def test_a_damaged_time_does_not_make_a_conversation_unanswerable(house: Household, created: str) -> None:
    run(house.path, f"UPDATE message SET created = {created} WHERE id = 1")
    conversation, opened = house.open()
    assert len(opened.damage) == 1
    for text in ("go on", "and on"):
        assert house.send(conversation, text).reply.finish_reason in ("stop", "length")
    house.close(conversation)
    assert verify(house.path) == []


@pytest.mark.parametrize(
    "damage",
    [blank_second_half, lambda path: run(path, "DELETE FROM rows WHERE id % 3 = 0")],
    ids=["blank second half", "missing rows"],
)
def test_damaged_state_is_told_at_once_and_read_again_once(house: Household, damage: Callable[[Path], None]) -> None:
    damage(house.path)
    conversation, opened = house.open()
    if not opened.transcript.path():  # the text itself was in the second half
        return
    first = house.send(conversation, "go on")
    assert opened.damage or house.warnings
    assert first.receipt.reason in ("damaged", "none")
    house.close(conversation)
    for text in ("and on", "and on again"):
        conversation, opened = house.open()
        assert opened.damage == ()
        later = house.send(conversation, text)
        assert (later.receipt.source, later.receipt.reason) == ("restored", "none")
        # the new message, and the newest reply's last token, which no turn has evaluated
        assert later.receipt.prompt_n <= len(text) + len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        house.close(conversation)
    assert verify(house.path) == []
