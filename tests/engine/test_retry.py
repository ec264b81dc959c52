"""A disk that was full for a while: what was not stored then is stored once there is room."""

from pathlib import Path

import numpy as np
import pytest

from engine.errors import DormouseError
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.slot import Slot
from tests.slot_samples import sample_model
from tests.toy_model import FAMILIES, N_VOCAB, ToyModel


def limit_pages(file: SlotFile, *, more: int) -> None:
    """Let the file grow by so many pages and no further."""
    connection = file._connection
    connection.execute(f"PRAGMA max_page_count={connection.pragma('page_count') + more}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("room", [0, 2])
def test_what_could_not_be_stored_is_stored_later(family: str, room: int, tmp_path: Path) -> None:
    path, errors, model = tmp_path / "a.slot", list[DormouseError](), ToyModel(family)
    store = Store(lambda: SlotFile.create(path), on_error=errors.append)
    identity = store.call(SlotFile.put_model, sample_model("toy")).result()
    slot = Slot(model, Archive(store, identity.id))
    prompt = np.random.default_rng(0).integers(0, N_VOCAB, 1200).astype(np.int32)

    def read_to(end: int) -> None:
        slot.evaluate(prompt[slot.n_tokens : end])
        slot.checkpoint(message=None, reason="message_end")
        store.flush()

    read_to(100)
    store.call(limit_pages, more=room).result()
    while not errors:
        read_to(slot.n_tokens + 40)
    read_to(slot.n_tokens + 40)
    store.retry()
    slot.resume()  # still no room
    store.flush()
    cause = f"{path} could not be saved: the disk is full."
    told = f"Your words are saved, but not what the model remembers of them: {cause}"
    assert [str(error) for error in errors] == [told] * 2
    store.call(limit_pages, more=1000).result()
    store.retry()
    slot.resume()
    read_to(slot.n_tokens + 40)
    n = slot.n_tokens
    assert store.failure is None
    store.close()
    assert verify(path) == []

    store = Store(lambda: SlotFile.open(path), on_error=errors.append)
    woken = Slot(model, Archive(store, identity.id))
    reuse = woken.plan(prompt[: n + 1])
    assert (reuse.n, reuse.reason) == (n, "none")
    assert woken.wake(reuse)
    assert slot.hidden is not None
    np.testing.assert_array_equal(woken.hidden, slot.hidden)
    store.close()
    assert len(errors) == 2
