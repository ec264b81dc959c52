"""The budget of a slot file: what is dropped is gone from it, and what stays still works."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import DormouseError
from engine.slot.archive import Archive
from engine.slot.file.inspect import inspect
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.records import ModelIdentity
from engine.slot.slot import Slot
from tests.slot_samples import sample_model
from tests.toy_model import FAMILIES, N_SWA, N_VOCAB, ToyModel

BUDGET = 40_000


@pytest.fixture(params=FAMILIES, name="model")
def _model(request: pytest.FixtureRequest) -> ToyModel:
    return ToyModel(request.param)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "a.slot"


@pytest.fixture(name="store")
def _store(path: Path) -> Iterator[Store]:
    errors: list[DormouseError] = []
    store = Store(lambda: SlotFile.create(path), on_error=errors.append)
    yield store
    store.close()
    assert errors == []


def open_slot(model: ToyModel, store: Store, *, budget: int | None = BUDGET) -> tuple[Slot, Archive]:
    toy = replace(sample_model("toy"), config={"layers": [[{"n_swa": N_SWA}]]})
    identity: ModelIdentity = store.call(SlotFile.put_model, toy).result()
    archive = Archive(store, identity.id)
    return Slot(model, archive, disk_budget=budget), archive


def go_on(slot: Slot, prompt: np.ndarray, *, ends: list[int]) -> int:
    """Evaluate what is not known of a prompt, with checkpoints at its messages' ends; return how much that was."""
    while not slot.wake(reuse := slot.plan(prompt)):
        pass
    position = reuse.n
    for end in ends:
        if end > position:
            slot.evaluate(prompt[position:end])
            slot.checkpoint(message=None, reason="message_end")
            position = end
    return len(prompt) - reuse.n


def talk(slot: Slot, *, n_turns: int, seed: int = 0) -> list[np.ndarray]:
    """Grow several branches; return their ids."""
    random = np.random.default_rng(seed)
    branches: list[tuple[np.ndarray, list[int]]] = [(np.empty(0, np.int32), [])]
    for _ in range(n_turns):
        ids, ends = branches[int(random.integers(len(branches)))] if random.random() < 0.2 else branches[-1]
        keep = len(ends) - int(random.integers(3)) if random.random() < 0.3 and len(ends) > 3 else len(ends)
        ends = ends[:keep]
        new = random.integers(0, N_VOCAB, int(random.integers(3, 40))).astype(np.int32)
        ids = np.concatenate([ids[: ends[-1] if ends else 0], new])
        branches.append((ids, [*ends, len(ids)]))
        go_on(slot, *branches[-1][:1], ends=branches[-1][1])
    return [ids for ids, _ in branches[1:]]


def test_the_file_stays_within_its_budget_and_says_what_it_lost(model: ToyModel, path: Path, store: Store) -> None:
    slot, archive = open_slot(model, store)
    talk(slot, n_turns=60)
    assert archive.nbytes <= BUDGET
    sizes = store.call(SlotFile.sizes).result()
    assert sizes["rows"] + sizes["checkpoints"] == archive.nbytes
    assert sizes["unused"] < 100_000
    log = store.call(SlotFile.log).result()
    evicted = [entry.detail for entry in log if entry.event == "evict"]
    assert evicted
    assert all(entry["reason"] == "disk_budget" and entry["nbytes"] > 0 for entry in evicted)
    assert len([e for e in log if e.event == "checkpoint"]) == len(evicted) + len(archive.checkpoints)
    store.close()
    assert verify(path) == []


def test_what_is_left_gives_what_a_fresh_evaluation_gives(model: ToyModel, store: Store) -> None:
    slot, _ = open_slot(model, store)
    branches = talk(slot, n_turns=40)
    for _ in range(2):
        for ids in branches[::3]:
            go_on(slot, ids, ends=[len(ids)])
            assert slot.hidden is not None
            np.testing.assert_allclose(slot.hidden, model.forward(ids, model.new_memory())[-1:], atol=1e-5)
        slot, _ = open_slot(model, store)


def test_without_a_budget_nothing_is_read_twice(model: ToyModel, store: Store) -> None:
    slot, archive = open_slot(model, store, budget=None)
    branches = talk(slot, n_turns=25)
    for ids in branches:
        assert go_on(slot, ids, ends=[len(ids)]) == 0
    assert not archive.given_up


def test_where_messages_ended_is_known_after_a_restart(model: ToyModel, store: Store) -> None:
    slot, archive = open_slot(model, store)
    talk(slot, n_turns=60)
    _, again = open_slot(model, store)
    assert again.checkpoints == archive.checkpoints
    assert again.given_up == archive.given_up != {}
    assert sorted(span.id for span in again.tree.spans()) == sorted(span.id for span in archive.tree.spans())


def test_windows_are_stored_once(path: Path, store: Store) -> None:
    slot, archive = open_slot(ToyModel("sliding_window"), store, budget=None)
    for _ in range(20):
        slot.evaluate(np.arange(6, dtype=np.int32))
        slot.checkpoint(message=None, reason="message_end")
    store.close()
    rows = [span.hi - span.lo for span in archive.tree.spans() if span.part == "sliding_window"]
    assert sum(rows) == 120 < 20 * N_SWA
    kept = inspect(path)["models"][0]["checkpoint_bytes"]
    payload = sum(checkpoint.nbytes for checkpoint in archive.checkpoints.values())
    n_separate = sum(min(N_SWA, n) for n in range(6, 126, 6))
    assert kept == {"stored": payload + 120 * 64, "separate": payload + n_separate * 64}


def test_a_budget_of_nothing_leaves_text_alone(model: ToyModel, store: Store) -> None:
    slot, archive = open_slot(model, store)
    talk(slot, n_turns=10)
    assert archive.nbytes > 0
    slot, archive = open_slot(model, store, budget=0)
    for _ in range(2):
        branches = talk(slot, n_turns=10)
        assert go_on(slot, np.append(branches[-1], 7), ends=[len(branches[-1]) + 1]) == 1  # what is live is live
        assert archive.nbytes == 0
        assert store.call(SlotFile.segments, 1).result() == {}
        sizes = store.call(SlotFile.sizes).result()
        assert (sizes["rows"], sizes["checkpoints"]) == (0, 0)
    assert [entry.event for entry in store.call(SlotFile.log).result()].count("evict") == 1


@pytest.mark.parametrize("budget", [3_000, 10_000, 20_000])
def test_of_a_conversation_beyond_its_budget_the_beginning_is_kept(model: ToyModel, store: Store, budget: int) -> None:
    random = np.random.default_rng(3)
    ids, ends = random.integers(0, N_VOCAB, 1000).astype(np.int32), list(range(25, 1001, 25))
    slot, archive = open_slot(model, store, budget=budget)
    for end in ends:
        go_on(slot, ids[:end], ends=[end])
        assert archive.nbytes <= budget
    slot, archive = open_slot(model, store, budget=budget)
    reuse = slot.plan(ids)
    by_token = sum(part.row_nbytes for part in slot.memory.parts if part.rewindable)
    if by_token:  # as much as fits, but for a checkpoint, a window and a state
        assert 0.5 * budget - 3_500 <= reuse.n * by_token <= budget
    assert slot.wake(reuse)
    go_on(slot, ids, ends=[1000])
    assert slot.hidden is not None
    np.testing.assert_allclose(slot.hidden, model.forward(ids, model.new_memory())[-1:], atol=1e-5)
    assert by_token == 0 or "over_budget" in {entry.event for entry in store.call(SlotFile.log).result()}


def test_a_smaller_budget_is_met_by_a_larger_file(model: ToyModel, path: Path, store: Store) -> None:
    slot, archive = open_slot(model, store, budget=None)
    talk(slot, n_turns=60)
    store.flush()
    assert archive.nbytes > BUDGET
    slot, archive = open_slot(model, store)
    go_on(slot, np.arange(9, dtype=np.int32), ends=[9])
    assert archive.nbytes <= BUDGET
    store.close()
    assert path.stat().st_size < BUDGET + 400_000  # pages, text and log
    assert verify(path) == []
