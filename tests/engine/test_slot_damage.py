"""What a damaged slot file still gives, what it says, and that it never gives anything wrong."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engine.errors import SlotFileError
from engine.slot.file.inspect import inspect, render
from engine.slot.file.schema import PAGE_SIZE
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.slot_samples import Contents, read_all, write_conversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_conversation(tmp_path / "chat.slot")
    return tmp_path / "chat.slot"


@pytest.fixture
def whole(path: Path) -> Contents:
    with SlotFile.open(path) as slot_file:
        return read_all(slot_file)


def run(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)


def zero_page_with(path: Path, text: str) -> None:
    """Zero every page that holds a text."""
    data = path.read_bytes()
    pages = [data[start : start + PAGE_SIZE] for start in range(0, len(data), PAGE_SIZE)]
    assert any(text.encode() in page for page in pages)
    path.write_bytes(b"".join(bytes(len(page)) if text.encode() in page else page for page in pages))


def root_page(path: Path, table: str) -> int:
    """Return where in the file a table begins."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    return (int(page) - 1) * PAGE_SIZE


def miscount_free_bytes(path: Path, table: str) -> None:
    """Do damage that matters to writers only."""
    data = bytearray(path.read_bytes())
    data[root_page(path, table) + 7] ^= 1
    path.write_bytes(data)


@contextmanager
def rescued(path: Path) -> Iterator[SlotFile]:
    """Open a copy of a file that says that it is not written any more."""
    copy = path.with_name("rescued.slot")
    with SlotFile.open(path) as slot_file:
        assert not slot_file.writable
        with pytest.raises(SlotFileError, match="save a copy and go on in that"):
            slot_file.begin_turn(None, "Hello", created=1)
        slot_file.save_copy(copy)
    with SlotFile.open(copy) as slot_file:
        yield slot_file
        slot_file.begin_turn(None, "Hello", created=1)
    with SlotFile.open(copy) as slot_file:
        assert slot_file.writable


def test_changed_text(path: Path, whole: Contents) -> None:
    run(path, "UPDATE message SET text = replace(text, 'wörds', 'swörds') WHERE id = 4")
    with SlotFile.open(path) as slot_file:
        assert slot_file.damage == ["1 of 17 messages are damaged: their text may be wrong."]
        for message in slot_file.messages():
            assert message.damaged == (message.id == 4)
            assert message.damaged or message == whole.messages[message.id]
        assert "swörds" in slot_file.messages()[3].text
        assert slot_file.state_damage == []
        user, _ = slot_file.begin_turn(slot_file.leaf(), "Go on", created=1)
    with SlotFile.open(path) as slot_file:
        assert user in slot_file.messages()
        assert [message.id for message in slot_file.messages() if message.damaged] == [4]


@pytest.mark.parametrize(
    "column", ["parent = 3", "role = 'user'", "created = created + 1", "finish_reason = NULL", "xxh3 = xxh3 + 1"]
)
def test_every_column_counts(path: Path, column: str) -> None:
    run(path, f"UPDATE message SET {column} WHERE id = 9")
    with SlotFile.open(path) as slot_file:
        assert [message.id for message in slot_file.messages() if message.damaged] == [9]


def test_missing_message(path: Path, whole: Contents) -> None:
    run(path, "DELETE FROM message WHERE id = 8")
    with SlotFile.open(path) as slot_file:
        assert slot_file.damage == [
            "Messages are missing or older than they should be.",
            "1 of 16 messages are damaged: their text may be wrong.",
        ]
    with rescued(path) as slot_file:
        messages = {message.id: message for message in slot_file.messages()}
        assert messages.keys() == whole.messages.keys() - {8}
        assert (messages[9].parent, messages[9].damaged) == (None, True)
        assert messages[10] == whole.messages[10]
        assert slot_file.leaf() == whole.leaf
        assert len(slot_file.receipts()) == 8


def test_older_message(path: Path) -> None:
    with SlotFile.open(path) as slot_file:
        older = path.read_bytes()
        slot_file.update_reply(17, "newer", "stop")
    newer = path.read_bytes()
    pages = range(0, len(newer), PAGE_SIZE)
    (stale,) = [page for page in pages if b"newer" in newer[page : page + PAGE_SIZE]]
    path.write_bytes(newer[:stale] + older[stale : stale + PAGE_SIZE] + newer[stale + PAGE_SIZE :])
    with SlotFile.open(path) as slot_file:
        assert slot_file.damage == ["Messages are missing or older than they should be."]


def test_unreadable_page(path: Path, whole: Contents) -> None:
    zero_page_with(path, "3 wörds")
    with rescued(path) as slot_file:
        found = {message.id: message for message in slot_file.messages() if not message.damaged}
        assert found
        assert found.items() <= whole.messages.items()
        assert {1, 17} <= {message.id for message in slot_file.messages()}


def test_page_that_would_suffer_from_writing(path: Path, whole: Contents) -> None:
    miscount_free_bytes(path, "message")
    with SlotFile.open(path) as slot_file:
        assert slot_file.damage == ["The file is cut short or damaged in its structure."]
        assert read_all(slot_file) == whole
    with rescued(path) as slot_file:
        assert read_all(slot_file).messages == whole.messages


def test_no_page_readable(path: Path) -> None:
    zero_page_with(path, "ö")
    with pytest.raises(SlotFileError, match=r"is damaged: none of its messages can be read\.$"):
        SlotFile.open(path)


def test_cut_short(path: Path, whole: Contents) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    with rescued(path) as slot_file:
        found = {message.id: message for message in slot_file.messages()}
        assert found == whole.messages


@pytest.mark.parametrize("sql", ["DELETE FROM totals", "UPDATE totals SET value = '{}'", "DELETE FROM manifest"])
def test_lost_totals(path: Path, whole: Contents, sql: str) -> None:
    run(path, sql)
    with rescued(path) as slot_file:
        assert {message.id: message for message in slot_file.messages()} == whole.messages
        assert slot_file.leaf() == (None if "manifest" in sql else whole.leaf)


def test_name_of_a_table_is_no_text(path: Path) -> None:
    path.write_bytes(
        path.read_bytes().replace(b'CREATE TABLE "message"', b'CREATE TABLE "\xce\xce\xce\xce\xce\xce\xce"')
    )
    with pytest.raises(SlotFileError, match=r"is damaged"):
        SlotFile.open(path)


@pytest.mark.parametrize(
    ("sql", "lost"),
    [
        ("UPDATE segment SET token_ids = zeroblob(400) WHERE id = 1", "token runs"),
        ("UPDATE segment SET parent_length = 81 WHERE parent = 1", "token runs"),
        ("DELETE FROM segment WHERE id = 1", "token runs"),
        ("UPDATE rows SET hi = 99 WHERE id = 3", "memory rows"),
        ("DELETE FROM rows WHERE id = 3", "memory rows"),
        ("UPDATE checkpoint SET length = 99 WHERE id = 4", "context checkpoints"),
        ("UPDATE model SET kv_type = 'q8_0' WHERE id = 1", "model identities"),
        ("UPDATE content SET token_ids = zeroblob(8) WHERE id = 1", "token ids of messages"),
        ("DELETE FROM receipt WHERE id = 1", "receipts"),
        ("UPDATE log SET detail = '{}' WHERE id = 1", "log entries"),
    ],
)
def test_damaged_state_is_left_out(path: Path, whole: Contents, sql: str, lost: str) -> None:
    run(path, sql)
    with SlotFile.open(path) as slot_file:
        found = read_all(slot_file)
        assert f"Some of the stored {lost} are damaged or missing." in slot_file.state_damage
        assert (found.messages, slot_file.damage) == (whole.messages, [])
        assert found.models.items() <= whole.models.items()
        assert all(whole.state[key] == value for key, value in found.state.items())
        assert len(found.state) + len(found.others) < len(whole.state) + len(whole.others)
        slot_file.drop_state()
        assert slot_file.next_state_id() == max(id for _, id in whole.state) + 1
    with SlotFile.open(path) as slot_file:
        assert read_all(slot_file).state == {}
        assert not any("segment" in sentence or "rows" in sentence for sentence in slot_file.state_damage)


def test_unreadable_page_of_state(path: Path, whole: Contents) -> None:
    page = root_page(path, "rows")
    data = path.read_bytes()
    path.write_bytes(data[:page] + bytes(PAGE_SIZE) + data[page + PAGE_SIZE :])
    copy = path.with_name("copy.slot")
    with SlotFile.open(path) as slot_file:
        assert (slot_file.rows_index(1), slot_file.read_rows(2)) == ([], None)
        assert slot_file.state_damage == ["Some of the stored memory rows are damaged or missing."]
        assert slot_file.damage == []
        slot_file.save_copy(copy)
    with SlotFile.open(copy) as slot_file:
        assert read_all(slot_file).messages == whole.messages
        assert slot_file.state_damage == []


@pytest.mark.parametrize(("table", "column"), [("rows", "data"), ("checkpoint", "hidden"), ("checkpoint", "states")])
def test_damaged_payload_is_not_given_out(path: Path, whole: Contents, table: str, column: str) -> None:
    (id,) = [max(id for kind, id in whole.state if kind == table)]
    run(path, f"UPDATE {table} SET {column} = zeroblob(length({column})) WHERE id = {id}")
    with SlotFile.open(path) as slot_file:
        assert slot_file.state_damage == []
        read = slot_file.read_rows if table == "rows" else slot_file.read_checkpoint
        assert read(id) is None
        assert len(slot_file.state_damage) == 1


def test_verify(path: Path) -> None:
    assert verify(path) == []
    run(path, "UPDATE rows SET data = zeroblob(9000) WHERE id = 2")
    run(path, "UPDATE checkpoint SET states = x'00' WHERE id = 8")
    assert verify(path) == [
        "Some of the stored context checkpoints are damaged or missing.",
        "Some of the stored memory rows are damaged or missing.",
        "The attention rows 0 to 49 of segment 1 are damaged.",
        "Checkpoint 8 is damaged.",
    ]


def test_verify_finds_broken_links(path: Path) -> None:
    with SlotFile.open(path) as slot_file:
        receipt = slot_file.receipts()[0]
        slot_file.put_receipt(type(receipt)(**{**vars(receipt), "message": 99}))
        slot_file.set_leaf(99)
    assert verify(path) == [
        "The message at which the conversation was left is missing.",
        "There is a receipt of a message or model that is missing.",
    ]


def test_verify_finds_what_checksums_do_not_cover(path: Path) -> None:
    miscount_free_bytes(path, "log")
    (problem,) = verify(path)
    assert problem.startswith("SQLite finds: ")


def test_inspect(path: Path) -> None:
    summary = inspect(path)
    assert summary["messages"] == {
        "count": 17,
        "by_role": {"system": 1, "user": 8, "assistant": 8},
        "damaged": 0,
        "leaf": 17,
    }
    assert summary["models"][0] == {
        "name": "one",
        "architecture": "llama",
        "fingerprint": "one",
        "kv_type": "f16",
        "kernels": "numpy",
        "segments": 4,
        "tokens": 400,
        "rows": {"attention": {"spans": 8, "tokens": 400, "bytes": 72_000}},
        "checkpoints": 4,
        "checkpoint_bytes": {"stored": 7424, "separate": 7424},
    }
    assert summary["receipts"] == {"count": 8, "prompt_n": 80, "cache_n": 28, "predicted_n": 160}
    assert summary["bytes"]["file"] == path.stat().st_size
    assert summary["bytes"]["rows"] == 2 * 72_000
    assert summary["bytes"]["token_ids"] == 8 * 1200 + 8 * 400
    assert summary["damage"] == summary["state_damage"] == []
    assert "rows         400 attention, 0.07 MB" in render(summary)


def test_inspect_tells_of_damage(path: Path) -> None:
    run(path, "DELETE FROM message WHERE id = 8")
    assert "Messages are missing or older than they should be." in render(inspect(path))


def test_save_copy(path: Path, whole: Contents) -> None:
    copy = path.with_name("copy.slot")
    copy.write_text("old")
    with SlotFile.open(path) as slot_file:
        slot_file.save_copy(copy)
        with pytest.raises(SlotFileError, match="can't be a copy of itself"):
            slot_file.save_copy(path)
        with pytest.raises(SlotFileError, match="does not exist"):
            slot_file.save_copy(path.parent / "missing" / "copy.slot")
    with SlotFile.open(copy) as slot_file:
        assert read_all(slot_file) == whole
    assert {file.name for file in path.parent.glob("*slot*")} == {"chat.slot", "copy.slot"}
