"""State that came from elsewhere: used where it is that of its text, put aside where it is not, and never passed on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.kernels import Kernels, load_kernels
from engine.memory import Memory
from engine.runtime import EngineSettings, Runtime
from engine.slot.archive import Archive
from engine.slot.file.repair import repair
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.reading import Reading
from engine.slot.slot import Slot
from engine.slot.spot_check import FARTHEST, ForeignStateError, SpotCheck
from tests.engine.test_walk import KINDS
from tests.models.tiny import N_VOCAB
from tests.strangers import change_payloads, forge_marks, forget_marks, substitute
from tests.walk import assert_same

ENDS = (60, 90, 200, 230)
IDS = np.random.default_rng(0).integers(5, N_VOCAB, 300).astype(np.int32)


@pytest.fixture(scope="module", name="kernels")
def _kernels() -> Iterator[Kernels]:
    kernels = load_kernels(n_threads=1)
    yield kernels
    kernels.close()


@pytest.fixture(scope="module", params=KINDS, name="runtime")
def _runtime(request: pytest.FixtureRequest, kernels: Kernels, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    path = KINDS[request.param]().write(tmp_path_factory.mktemp("model") / "model.gguf")
    return Runtime.load(path, kernels, EngineSettings())


class Sleeper:
    """Opens a slot file again and again."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path, self.runtime = path, runtime
        self.told: list[str] = []

    def __enter__(self) -> Slot:
        def open_file() -> SlotFile:
            return SlotFile.open(self.path) if self.path.exists() else SlotFile.create(self.path)

        self._store = Store(open_file, on_error=lambda error: self.told.append(str(error)))
        model = self._store.call(SlotFile.put_model, self.runtime.identity()).result()
        self.slot = Slot(self.runtime.model, Archive(self._store, model.id))
        return self.slot

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def marked(self) -> set[int]:
        with SlotFile.open(self.path, read_only=True) as file:
            return set(file.marks())

    def records(self) -> set[int]:
        with SlotFile.open(self.path, read_only=True) as file:
            (model,) = file.models()
            return {s.id for s in file.rows_index(model.id)} | {c.id for c in file.checkpoints(model.id) if c.nbytes}


def go_on(slot: Slot, ids: np.ndarray, ends: tuple[int, ...]) -> None:
    """Evaluate ids up to each end, in ubatches of 32, with checkpoints there."""
    for end in ends:
        while slot.n_tokens < end:
            slot.evaluate(ids[slot.n_tokens : min(end, slot.n_tokens + 32)])
        slot.checkpoint(message=None, reason="message_end")


def wake(slot: Slot, ids: np.ndarray) -> list[int]:
    """Go to the end of what is known of ids; return the places that were tried."""
    tried = []
    while True:
        reuse = slot.plan(ids)
        tried.append(reuse.n)
        if slot.wake(reuse):
            return tried


def truth(runtime: Runtime, ids: np.ndarray, ends: tuple[int, ...]) -> Memory:
    memory = runtime.model.new_memory()
    for end in ends:
        while memory.n_tokens < end:
            runtime.model.forward(ids[memory.n_tokens : min(end, memory.n_tokens + 32)], memory)
    return memory


@pytest.fixture(name="sleeper")
def _sleeper(tmp_path: Path, runtime: Runtime) -> Sleeper:
    sleeper = Sleeper(tmp_path / "a.slot", runtime)
    with sleeper as slot:
        go_on(slot, IDS, ENDS)
    return sleeper


def test_what_was_computed_here_is_marked_and_is_used_without_a_look(sleeper: Sleeper) -> None:
    assert sleeper.marked() == sleeper.records()
    with sleeper as slot:
        forward = slot._model.forward
        slot._model.forward = pytest.fail  # type: ignore[method-assign, assignment]
        try:
            assert wake(slot, IDS[:230]) == [230]
        finally:
            slot._model.forward = forward  # type: ignore[method-assign]
        go_on(slot, IDS, (260,))
    assert sleeper.marked() == sleeper.records()
    assert sleeper.told == []


@pytest.mark.parametrize("change", [forget_marks, forge_marks])
def test_what_has_no_mark_that_holds_is_used_after_a_look_and_what_follows_is_not_marked(
    sleeper: Sleeper, change: Callable[[Path], None]
) -> None:
    change(sleeper.path)
    before = sleeper.marked()
    with sleeper as slot:
        for ids, n in ((IDS[:230], 230), (IDS[:60], 60), (IDS[:230], 230)):
            assert wake(slot, ids) == [n]
            assert_same(slot.memory, truth(sleeper.runtime, IDS, tuple(end for end in ENDS if end <= n)))
        go_on(slot, IDS, (260, 290))
        assert_same(slot.memory, truth(sleeper.runtime, IDS, (*ENDS, 260, 290)))
    assert sleeper.marked() == before
    known = sleeper.records()
    with sleeper as slot:  # another text, from nothing
        assert wake(slot, IDS[::-1]) == [0]
        go_on(slot, IDS[::-1], (40, 80))
    assert sleeper.marked() - before == sleeper.records() - known != set()


@pytest.mark.parametrize("keep_marks", [False, True])
def test_state_of_another_text_is_put_aside_once_and_computed_again(sleeper: Sleeper, keep_marks: bool) -> None:
    substitute(sleeper.path, [sleeper.runtime], lambda ids: (ids + 1) % N_VOCAB)
    if not keep_marks:
        forget_marks(sleeper.path)
    with sleeper as slot:
        assert wake(slot, IDS[:230]) == [230, 0]
        (sentence,) = sleeper.told
        assert "not that of its text" in sentence
        assert slot.plan(IDS[:230]).reason == "damaged"
        go_on(slot, IDS, ENDS)
    assert sleeper.marked() == sleeper.records() != set()
    assert verify(sleeper.path) == []
    with sleeper as slot:
        assert wake(slot, IDS[:230]) == [230]
        assert_same(slot.memory, truth(sleeper.runtime, IDS, ENDS))


def test_state_of_another_text_is_never_given_away(sleeper: Sleeper, tmp_path: Path) -> None:
    other = Sleeper(tmp_path / "b.slot", sleeper.runtime)
    with sleeper as honest, other as slot:
        reuse = slot.plan(IDS[:230], honest._archive)
        assert reuse.n == 230
        assert slot.adopt(honest._archive, reuse, name="a.slot")
        assert_same(slot.memory, truth(sleeper.runtime, IDS, ENDS))
    assert other.marked() == other.records() != set()  # computed here, if elsewhere in the library
    for change in (forget_marks, forge_marks):
        change(sleeper.path)
        other.path.unlink()
        with sleeper as received, other as slot:
            assert not slot.adopt(received._archive, slot.plan(IDS[:230], received._archive), name="a.slot")
            assert slot.n_tokens == 0


def test_numbers_that_are_none_are_damage(sleeper: Sleeper) -> None:
    random = np.random.default_rng(1)

    def spoil(_: object, data: bytes) -> bytes:
        values = np.frombuffer(data, np.float16).copy()
        values[random.integers(len(values))] = random.choice([np.inf, -np.inf, np.nan])
        return values.tobytes()

    def spoil_states(payload):
        states = np.frombuffer(payload.states or b"", np.float32).copy()
        states[len(states) // 2 :][:1] = np.inf
        return type(payload)(payload.hidden, payload.next_tokens, states.tobytes() if payload.states else None)

    change_payloads(sleeper.path, rows=spoil, checkpoint=spoil_states)
    with sleeper as slot:
        assert wake(slot, IDS[:230]) == [230, 0]
        assert slot.plan(IDS[:230]).reason == "damaged"
        go_on(slot, IDS, ENDS)
        assert_same(slot.memory, truth(sleeper.runtime, IDS, ENDS))


@pytest.mark.parametrize("data", [b"", b"\x00" * 5, b"\x00" * 4000])
def test_states_of_another_size_are_damage(sleeper: Sleeper, data: bytes) -> None:
    change_payloads(
        sleeper.path, checkpoint=lambda p: type(p)(p.hidden[:-1], p.next_tokens, data if p.states else None)
    )
    with sleeper as slot:
        tried = wake(slot, IDS[:230])
        assert tried[-1] < 230
        assert slot.plan(IDS[:230]).reason == "damaged"


def test_what_can_not_be_checked_is_put_aside(runtime: Runtime, tmp_path: Path) -> None:
    far = FARTHEST + 88
    ids = np.random.default_rng(2).integers(5, N_VOCAB, far + 20).astype(np.int32)
    sleeper = Sleeper(tmp_path / "far.slot", runtime)
    with sleeper as slot:
        go_on(slot, ids, (far,))
    forget_marks(sleeper.path)
    with sleeper as slot:
        tried = wake(slot, ids[: far + 20])
        if any(not part.row_nbytes for part in slot.memory.parts):
            assert tried == [far, 0]
            assert "can't be checked" in sleeper.told[0]
            assert slot.plan(ids).reason == "state_dropped"
        else:
            assert tried == [far]
        go_on(slot, ids, (far + 20,))
    with sleeper as slot:
        assert wake(slot, ids) == [far + 20]


@pytest.mark.parametrize("runtime", ["recurrent", "hybrid"], indirect=True)
def test_of_what_can_not_be_checked_only_that_is_put_aside(runtime: Runtime, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(5, N_VOCAB, 2000).astype(np.int32)
    sleeper = Sleeper(tmp_path / "far.slot", runtime)
    with sleeper as slot:
        go_on(slot, ids, (100, 200, 200 + FARTHEST + 1, 202 + 2 * FARTHEST))
    forget_marks(sleeper.path)
    with sleeper as slot:
        assert wake(slot, ids) == [202 + 2 * FARTHEST, 201 + FARTHEST, 200]
        (sentence,) = sleeper.told
        assert "can't be checked" in sentence


@pytest.mark.parametrize("runtime", [name for name in KINDS if name != "full attention"], indirect=True)
def test_another_beginning_is_found_out_though_all_that_follows_is_the_same(sleeper: Sleeper) -> None:
    """Where memory can't be cut back, the first checkpoint is computed from nothing: instructions stand there."""

    def exchange(ids: np.ndarray) -> np.ndarray:
        return np.concatenate([(ids[:45] + 1) % N_VOCAB, ids[45:]])

    substitute(sleeper.path, [sleeper.runtime], exchange)
    forget_marks(sleeper.path)
    with sleeper as slot:
        assert wake(slot, IDS[:230])[-1] == 0
        go_on(slot, IDS, ENDS)
        assert_same(slot.memory, truth(sleeper.runtime, IDS, ENDS))


@pytest.mark.parametrize("runtime", ["full attention"], indirect=True)
def test_few_exchanged_tokens_are_found_where_one_looks(sleeper: Sleeper) -> None:
    """Rows of a text of which 40 tokens in the middle are others are found out sometimes, and never blamed wrongly."""

    def exchange(ids: np.ndarray) -> np.ndarray:
        changed = ids.copy()
        changed[100:140] = (changed[100:140] + 1) % N_VOCAB
        return changed

    substitute(sleeper.path, [sleeper.runtime], exchange)
    forget_marks(sleeper.path)
    with sleeper as slot:
        found = 0
        for seed in range(20):
            archive = slot._archive
            reuse = slot.plan(IDS[:230])
            reading = Reading(archive)
            memory, hidden = reading.memory(slot._model, slot._kv_type, reuse.cursor, reuse.checkpoint)
            check = SpotCheck(slot._model, slot._kv_type, archive, random=Random(seed))
            try:
                check.check(reading, memory, reuse.cursor, hidden)
            except ForeignStateError:
                found += 1
            archive.origins.clear()
        assert found > 3


def test_a_cancelled_check_leaves_what_was_live(sleeper: Sleeper) -> None:
    forget_marks(sleeper.path)

    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    with sleeper as slot:
        go_on(slot, IDS[::-1], (40,))
        reuse = slot.plan(IDS[:230])
        with pytest.raises(StopError):
            slot.wake(reuse, between_layers=stop)
        assert_same(slot.memory, truth(sleeper.runtime, IDS[::-1], (40,)))
        assert slot.plan(IDS[:230]) == reuse
        assert slot.wake(reuse)


def test_marks_go_with_what_they_stand_for(sleeper: Sleeper, tmp_path: Path) -> None:
    copy = tmp_path / "copy.slot"
    with SlotFile.open(sleeper.path) as file:
        marks = file.marks()
        file.save_copy(copy)
    with SlotFile.open(copy, read_only=True) as file:
        assert file.marks() == marks
    with closing(sqlite3.connect(sleeper.path, isolation_level=None)) as connection:
        (id,) = connection.execute("SELECT max(id) FROM checkpoint").fetchone()
        connection.execute("UPDATE checkpoint SET length = length + 1 WHERE id = ?", (id,))
    assert repair(sleeper.path) is not None
    assert sleeper.marked() == marks.keys() - {id}
    with SlotFile.open(sleeper.path) as file:
        file.delete_checkpoint(min(c.id for c in file.checkpoints(1)))
        assert file.marks().keys() < marks.keys() - {id}
        file.drop_state()
        assert file.marks() == {}
    assert verify(sleeper.path) == []


def test_a_key_of_another_installation_makes_other_marks(
    sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    with sleeper as slot:
        assert wake(slot, IDS[:230]) == [230]
        assert not slot._is_own
