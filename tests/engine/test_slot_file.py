"""The slot file: what goes in comes out."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.slot.file.slot_file import SlotFile
from engine.slot.records import Message, Segment, StoredRows
from tests.slot_samples import read_all, sample_model, write_conversation, write_state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.slot"


def test_round_trip(path: Path) -> None:
    write_conversation(path)
    with SlotFile.open(path) as slot_file:
        contents = read_all(slot_file)
        assert (slot_file.damage, slot_file.state_damage) == ([], [])
    roles = [message.role for message in contents.messages.values()]
    assert roles == ["system"] + ["user", "assistant"] * 8
    assert contents.leaf == 17
    assert contents.messages[17].text == "7 Antwort 🐭 " * 150
    assert [model.fingerprint for model in contents.models.values()] == ["one", "two"]
    assert {kind for kind, _ in contents.state} == {"segment", "rows", "checkpoint"}
    assert len(contents.others) == 3 * 8


def test_versions_are_siblings(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        user, first = slot_file.begin_turn(None, "Hello", created=1)
        assert user is not None
        nobody, second = slot_file.begin_turn(user.id, None, created=2)
        assert nobody is None
        assert (first.parent, second.parent) == (user.id, user.id)
        assert slot_file.leaf() == second.id
        slot_file.set_leaf(first.id)
        assert slot_file.leaf() == first.id
        assert slot_file.messages() == [user, first, second]


@pytest.mark.parametrize("text", ["", "a\0b", "🐭\r\n\u2028", "\ufffd", "'; DROP TABLE message --"])
def test_any_text(path: Path, text: str) -> None:
    with SlotFile.create(path) as slot_file:
        added = slot_file.add_message(None, "user", text, created=1.5)
        assert added == Message(1, None, "user", text, 1.5)
    with SlotFile.open(path) as slot_file:
        assert slot_file.messages() == [added]


def test_half_a_character_is_replaced(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        added = slot_file.add_message(None, "user", "a\ud800b", created=1)
        assert added.text == "a?b"
        assert slot_file.messages() == [added]


def test_numpy_numbers(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        slot_file.add_message(None, "user", "", created=np.float64(-0.0))
        model = slot_file.put_model(sample_model("m"))
        ids = np.arange(np.int64(5), dtype=np.int64).astype(np.int32)
        slot_file.put_segment(Segment.follow(1, model=model.id, parent=None, length=0, token_ids=ids))
        span = StoredRows(2, 1, "attention", int(np.int64(0)), 5, nbytes=3)
        slot_file.put_rows(span, memoryview(b"abc"))
        assert slot_file.rows_index(model.id) == [span]
        assert slot_file.read_rows(2) == b"abc"
        assert not any(message.damaged for message in slot_file.messages())


def test_model_is_stored_once(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        first = slot_file.put_model(sample_model("m"))
        moved = slot_file.put_model(replace(sample_model("m"), path="/elsewhere"))
        assert moved.id == first.id
        assert slot_file.models() == [moved]


def test_ids_are_never_used_again(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        write_state(slot_file, "m", np.random.default_rng(1))
        used = slot_file.next_state_id()
        slot_file.drop_state()
    with SlotFile.open(path) as slot_file:
        assert slot_file.next_state_id() == used


def test_transaction_is_all_or_nothing(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        kept = slot_file.add_message(None, "user", "kept", created=1)
        with suppress(ZeroDivisionError), slot_file.transaction():
            slot_file.add_message(None, "user", "lost", created=1)
            raise ZeroDivisionError
        assert slot_file.messages() == [kept]
        assert slot_file.add_message(None, "user", "next", created=1).id == 2
        assert slot_file.damage == []


def test_drop_state_gives_the_space_back(path: Path) -> None:
    write_conversation(path)
    with SlotFile.open(path) as slot_file:
        before = read_all(slot_file)
        size = slot_file.sizes()["file"]
        slot_file.drop_state(1)
        half = read_all(slot_file)
        assert {key: half.state[key] for key in half.state} == {
            key: value for key, value in before.state.items() if key in half.state
        }
        assert len(half.state) == len(before.state) // 2
        slot_file.drop_state()
        assert read_all(slot_file).state == {}
        assert read_all(slot_file).messages == before.messages
        assert slot_file.sizes()["file"] < size - 100_000
        assert slot_file.sizes()["unused"] == 0
    with SlotFile.open(path) as slot_file:
        assert (slot_file.damage, slot_file.state_damage) == ([], [])


def test_deleted_state_is_gone(path: Path) -> None:
    write_conversation(path)
    with SlotFile.open(path) as slot_file:
        span, checkpoint = slot_file.rows_index(1)[0], slot_file.checkpoints(1)[0]
        slot_file.delete_rows(span.id)
        slot_file.delete_checkpoint(checkpoint.id)
        assert slot_file.state_damage == []
        assert slot_file.read_rows(span.id) is None
        assert slot_file.read_checkpoint(checkpoint.id) is None
        assert span not in slot_file.rows_index(1)
        assert checkpoint not in slot_file.checkpoints(1)


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with SlotFile.create(":memory:") as slot_file:
        slot_file.begin_turn(None, "Secret", created=1)
        slot_file.save_copy(tmp_path / "kept.slot")
        (tmp_path / "kept.slot").unlink()
        slot_file.drop_state()
    assert sorted(tmp_path.iterdir()) == before


def test_replies_cut_off_by_a_crash(path: Path) -> None:
    with SlotFile.create(path) as slot_file:
        _, done = slot_file.begin_turn(None, "One", created=1)
        slot_file.update_reply(done.id, "Answer", "stop")
        _, begun = slot_file.begin_turn(done.id, "Two", created=2)
        slot_file.update_reply(begun.id, "Ans", "pending")
        _, empty = slot_file.begin_turn(begun.id, "Three", created=3)
    with SlotFile.open(path, read_only=True) as slot_file:
        assert slot_file.messages()[-1] == empty
    with SlotFile.open(path) as slot_file:
        replies = {m.id: m.finish_reason for m in slot_file.messages() if m.role == "assistant"}
        assert replies == {done.id: "stop", begun.id: "interrupted", empty.id: "interrupted"}
        assert slot_file.leaf() == empty.id
        assert slot_file.damage == []
