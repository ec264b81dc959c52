"""A slot on a real model: what saving a turn writes, and the self-test of what is read back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import DormouseError
from engine.kernels import load_kernels
from engine.runtime import EngineSettings, Runtime
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.next_tokens import NextTokens
from engine.slot.records import Checkpoint
from engine.slot.slot import Slot


@pytest.fixture(scope="module", name="runtimes")
def _runtimes(smollm2: Path, gemma3: Path) -> Iterator[dict[str, Runtime]]:
    kernels = load_kernels()
    yield {p.stem: Runtime.load(p, kernels, EngineSettings()) for p in (smollm2, gemma3)}
    kernels.close()


@pytest.fixture(params=[0, 1], name="runtime")
def _runtime(runtimes: dict[str, Runtime], request: pytest.FixtureRequest) -> Runtime:
    return list(runtimes.values())[request.param]


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[Store]:
    errors: list[DormouseError] = []
    store = Store(lambda: SlotFile.create(tmp_path / "a.slot"), on_error=errors.append)
    yield store
    store.close()
    assert errors == []


def ids(runtime: Runtime, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, runtime.model.config.n_vocab, n).astype(np.int32)


def new_slot(runtime: Runtime, store: Store) -> Slot:
    identity = store.call(SlotFile.put_model, runtime.identity()).result()
    return Slot(runtime.model, Archive(store, identity.id))


def test_saving_a_turn_writes_its_own_rows_only(runtime: Runtime, store: Store) -> None:
    slot = new_slot(runtime, store)
    slot.evaluate(ids(runtime, 900))
    slot.checkpoint(message=None, reason="message_end")
    store.flush()
    before = store.bytes_written
    slot.evaluate(ids(runtime, 100, seed=1))
    slot.checkpoint(message=None, reason="message_end")
    store.flush()
    written = store.bytes_written - before
    rows = 100 * sum(part.row_nbytes for part in slot.memory.parts)
    assert rows <= written < rows + 10_000


def test_a_hidden_state_that_fails_its_self_test_is_put_aside(runtime: Runtime, store: Store) -> None:
    slot = new_slot(runtime, store)
    prompt = ids(runtime, 40)
    slot.evaluate(prompt[:30])
    slot.checkpoint(message=None, reason="message_end")
    slot.evaluate(prompt[30:])
    slot.checkpoint(message=None, reason="message_end")
    newest = store.call(SlotFile.checkpoints, 1).result()[-1]
    payload = store.call(SlotFile.read_checkpoint, newest.id).result()
    assert payload
    forged = Checkpoint(**{**vars(newest), "id": newest.id + 1000})
    store.call(SlotFile.delete_checkpoint, newest.id).result()
    wrong = type(payload)(payload.hidden + np.float32(0.5), payload.next_tokens, payload.states)
    store.call(SlotFile.put_checkpoint, forged, wrong).result()

    woken = new_slot(runtime, store)
    reuse = woken.plan(prompt)
    assert (reuse.n, reuse.checkpoint) == (40, forged)
    assert not woken.wake(reuse)
    again = woken.plan(prompt)
    assert again.n < 40
    assert again.reason == "damaged"
    assert woken.wake(again)
    assert woken.n_tokens == again.n


def test_a_digest_tells_other_kernels_from_other_states() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 3
    digest = NextTokens.from_bytes(NextTokens.of(logits, kernels="here").to_bytes())
    nearly = logits + np.float32(1e-3)
    assert digest.agrees(logits, kernels="here")
    assert not digest.agrees(nearly, kernels="here")
    assert digest.agrees(nearly, kernels="elsewhere")
    assert not digest.agrees(logits[::-1].copy(), kernels="elsewhere")
    assert not digest.agrees(logits[:10], kernels="elsewhere")


@pytest.mark.parametrize("change", [[], [-1], [-2000], [1000], [1 << 30]])
def test_a_digest_of_what_no_logits_are_agrees_with_none(change: list[int]) -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole = NextTokens.of(logits, kernels="here")
    ids = np.array([*change, *whole.token_ids[len(change) :]], np.int32) if change else np.empty(0, np.int32)
    digest = replace(whole, token_ids=ids, logits=whole.logits[: len(ids)])
    assert not NextTokens.from_bytes(digest.to_bytes()).agrees(logits, kernels="elsewhere")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_a_digest_of_numbers_that_are_none_agrees_with_none(value: float) -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole = NextTokens.of(logits, kernels="here")
    digest = replace(whole, logits=np.array([value, *whole.logits[1:]], np.float32))
    assert not digest.agrees(logits, kernels="elsewhere")


@pytest.mark.parametrize(
    "data", [b"", b"x" * 13, b"\xff" * 14, NextTokens.of(np.ones(9, np.float32), kernels="k").to_bytes()[:-1]]
)
def test_a_broken_digest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="digest"):
        NextTokens.from_bytes(data)
