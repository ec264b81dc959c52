"""The store thread: order, batches, back pressure, failures, and what a killed process leaves."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engine.errors import DormouseError, SlotFileError
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.records import ModelIdentity, Segment, StoredRows
from tests.slot_samples import sample_model

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.slot"


@pytest.fixture
def errors() -> list[DormouseError]:
    return []


@pytest.fixture
def store(path: Path, errors: list[DormouseError]) -> Iterator[Store]:
    store = Store(lambda: SlotFile.create(path), on_error=errors.append, max_pending=8 * MIB)
    yield store
    store.close()


def put_segment(slot_file: SlotFile, model: ModelIdentity, id: int, n_tokens: int) -> None:
    ids = np.arange(n_tokens, dtype=np.int32)
    slot_file.put_segment(Segment.follow(id, model=model.id, parent=None, length=0, token_ids=ids))


def row_writer(id: int, data: bytes) -> Callable[[SlotFile], None]:
    return lambda slot_file: slot_file.put_rows(StoredRows(id, 1, "attention", id, id + 1, len(data)), data)


def test_calls_and_posts_keep_their_order(store: Store) -> None:
    model = store.call(SlotFile.put_model, sample_model("m")).result()
    assert model.id == 1
    store.post(lambda slot_file: put_segment(slot_file, model, 1, 100), nbytes=400)
    for id in range(50):
        store.post(row_writer(id + 1, bytes([id]) * 1000), nbytes=1000)
    rows = store.call(SlotFile.read_rows, 50)
    assert rows.result() == bytes([49]) * 1000
    assert len(store.call(SlotFile.rows_index, 1).result()) == 50
    assert store.pending == 0


def test_failed_call_is_told_to_the_caller(store: Store, errors: list[DormouseError]) -> None:
    with pytest.raises(SlotFileError, match="what should be changed can't be read"):
        store.call(SlotFile.update_reply, 7, "text", "stop").result()
    with pytest.raises(ZeroDivisionError):
        store.call(lambda _: 1 // 0).result()
    assert store.call(SlotFile.messages).result() == []
    assert errors == []


def test_failure_to_open_is_what_every_call_answers(tmp_path: Path, errors: list[DormouseError]) -> None:
    threads = threading.active_count()
    store = Store(lambda: SlotFile.open(tmp_path / "missing.slot"), on_error=errors.append)
    store.post(lambda _: None, nbytes=10)
    for _ in range(2):
        with pytest.raises(SlotFileError, match="does not exist"):
            store.call(SlotFile.messages).result()
    store.close()
    assert threading.active_count() == threads
    assert errors == []


def test_move_goes_on_in_the_copy(tmp_path: Path, errors: list[DormouseError]) -> None:
    first, second = tmp_path / "first.slot", tmp_path / "second.slot"
    store = Store(lambda: SlotFile.create(first), on_error=errors.append)
    store.call(SlotFile.add_message, None, "user", "before", created=1.0)
    moved = store.move(second)
    store.call(SlotFile.add_message, None, "user", "after", created=2.0).result()
    with pytest.raises(SlotFileError, match=r"a folder|not a file"):
        store.move(tmp_path).result()
    moved.result()
    store.close()
    texts = []
    for path in (first, second):
        with SlotFile.open(path, read_only=True) as slot_file:
            texts.append([message.text for message in slot_file.messages()])
    assert texts == [["before"], ["before", "after"]]


class Recorded(SlotFile):
    """Notes how much was written when each transaction of the store began."""

    begun: list[int]

    def transaction(self) -> AbstractContextManager[None]:
        self.begun.append(self.bytes_written)
        return super().transaction()


def test_posted_writes_share_transactions_of_bounded_size(path: Path, errors: list[DormouseError]) -> None:
    Recorded.begun = []
    store = Store(lambda: Recorded.create(path), on_error=errors.append)
    with held(store):
        for id in range(1, 21):
            store.post(row_writer(id, bytes(2 * MIB)), nbytes=2 * MIB)
    store.flush()
    written = [*Recorded.begun, store.bytes_written]
    store.close()
    assert [round((end - begin) / MIB) for begin, end in pairwise(written)] == [16, 16, 8]


def test_post_waits_for_room(store: Store) -> None:
    posted: list[int] = []

    def post() -> None:
        for id in range(1, 7):
            store.post(row_writer(id, bytes(2 * MIB)), nbytes=2 * MIB)
            posted.append(id)

    with held(store):
        thread = threading.Thread(target=post)
        thread.start()
        thread.join(0.3)
        assert posted == [1, 2, 3, 4]
        assert store.pending == 8 * MIB
    thread.join()
    store.flush()
    assert (posted, store.pending) == ([1, 2, 3, 4, 5, 6], 0)


def test_what_alone_is_too_much_is_let_in(store: Store) -> None:
    store.post(row_writer(1, bytes(9 * MIB)), nbytes=9 * MIB)
    assert len(store.call(SlotFile.read_rows, 1).result() or b"") == 9 * MIB


def test_full_disk_costs_the_state_not_the_conversation(path: Path, store: Store, errors: list[DormouseError]) -> None:
    limit = store.call(lambda slot_file: slot_file._connection.pragma("page_count")).result() + 80
    store.call(lambda slot_file: slot_file._connection.execute(f"PRAGMA max_page_count={limit}")).result()
    model = store.call(SlotFile.put_model, sample_model("m")).result()
    store.post(lambda slot_file: put_segment(slot_file, model, 1, 100), nbytes=400)
    store.flush()
    for id in range(2, 6):
        store.post(row_writer(id, bytes(MIB)), nbytes=MIB)
        store.flush()
    (error,) = errors
    assert str(error).startswith("Your words are saved, but not what the model remembers of them: ")
    assert str(error).endswith(f"{path} could not be saved: the disk is full.")
    assert store.failure is error
    _, reply = store.call(SlotFile.begin_turn, None, "Hello", created=1).result()
    store.call(SlotFile.update_reply, reply.id, "Hi", "stop").result()
    store.close()
    assert verify(path) == []
    with SlotFile.open(path) as slot_file:
        assert [message.text for message in slot_file.messages()] == ["Hello", "Hi"]
        assert len(slot_file.rows_index(model.id)) == 1


def test_a_bug_in_a_posted_write_does_not_stop_the_thread(store: Store, errors: list[DormouseError]) -> None:
    store.post(lambda _: 1 // 0, nbytes=1)
    store.flush()
    (error,) = errors
    assert "ZeroDivisionError" in str(error)
    assert store.call(SlotFile.messages).result() == []


def test_close_writes_everything(path: Path, store: Store) -> None:
    with held(store):
        for id in range(1, 31):
            store.post(row_writer(id, bytes(1000)), nbytes=1000)
        closing = threading.Thread(target=store.close)
        closing.start()
    closing.join()
    store.close()
    with pytest.raises(SlotFileError, match="is closed"):
        store.post(row_writer(31, b""), nbytes=0)
    with pytest.raises(SlotFileError, match="is closed"):
        store.call(SlotFile.messages)
    with SlotFile.open(path) as slot_file:
        assert slot_file.sizes()["rows"] == 30_000


def test_forgotten_store_is_written_at_exit(path: Path) -> None:
    program = """
import sys
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
store = Store(lambda: SlotFile.create(sys.argv[1]), on_error=print)
for n in range(100):
    store.post(lambda slot_file: slot_file.add_message(None, "user", "Hello " * 1000, created=1), nbytes=6000)
"""
    assert (
        subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, cwd=ROOT).stdout == b""
    )
    with SlotFile.open(path) as slot_file:
        assert len(slot_file.messages()) == 100


def test_a_turn_writes_its_own_rows_only(store: Store, path: Path) -> None:
    model = store.call(SlotFile.put_model, sample_model("m")).result()
    store.post(lambda slot_file: put_segment(slot_file, model, 1, 4000), nbytes=16_000)
    for id in range(1, 41):
        store.post(row_writer(id, bytes(MIB)), nbytes=MIB)
    store.flush()
    written, size = store.bytes_written, path.stat().st_size
    turn = store.call(SlotFile.begin_turn, None, "Hello", created=1)
    store.post(row_writer(41, bytes(MIB)), nbytes=MIB)
    store.call(SlotFile.update_reply, turn.result()[1].id, "Hi", "stop").result()
    assert MIB < store.bytes_written - written < MIB + 1000
    assert MIB <= path.stat().st_size - size < MIB + 100_000


WRITER = """
import sys
import numpy as np
from engine.slot.records import StoredRows, Segment
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from tests.slot_samples import sample_model

store = Store(lambda: SlotFile.create(sys.argv[1]), on_error=print)
model = store.call(SlotFile.put_model, sample_model("m")).result()
last, parent = None, None
for turn in range(10_000):
    user, reply = store.call(SlotFile.begin_turn, last, f"{turn} " * 2000, created=turn).result()
    print(user.id, flush=True)
    ids = np.arange(50, dtype=np.int32)
    parent = Segment.follow(2 * turn + 1, model=model.id, parent=parent, length=50 if parent else 0, token_ids=ids)
    span = StoredRows(2 * turn + 2, parent.id, "attention", 0, 50, 300_000)
    store.post(lambda f, segment=parent: f.put_segment(segment), nbytes=200)
    store.post(lambda f, span=span: f.put_rows(span, bytes(300_000)), nbytes=300_000)
    store.call(SlotFile.update_reply, reply.id, f"{turn} answer " * 500, "stop").result()
    last = reply.id
"""


@pytest.mark.parametrize("attempt", range(10))
def test_killed_at_any_moment(path: Path, attempt: int) -> None:
    random = np.random.default_rng(attempt)
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(random.uniform(0, 0.25))
        writer.send_signal(signal.SIGKILL)
        sent = [int(line) for line in (first + writer.stdout.read()).splitlines()]
    with SlotFile.open(path) as slot_file:
        assert (slot_file.damage, slot_file.state_damage) == ([], [])
        messages = {message.id: message for message in slot_file.messages()}
        assert set(sent) <= messages.keys()
        assert all(messages[id].text == f"{turn} " * 2000 for turn, id in enumerate(sent))
        assert not any(message.finish_reason == "pending" for message in messages.values())
        slot_file.begin_turn(slot_file.leaf(), "Go on", created=1)
    assert verify(path) == []


@contextmanager
def held(store: Store) -> Iterator[None]:
    """Keep the store's thread busy with one call meanwhile."""
    entered, gate = threading.Event(), threading.Event()

    def wait(_: SlotFile) -> None:
        entered.set()
        gate.wait()

    store.call(wait)
    entered.wait()
    try:
        yield
    finally:
        gate.set()
