"""What saving a turn costs, and waking a conversation from its file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.speed import N_UBATCH, random_ids
from engine.conversation import read_transcript
from engine.errors import DormouseError
from engine.runtime import Runtime
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.slot import Slot

_SAVED_TOKENS = 100


def sleep_and_wake(runtime: Runtime, depth: int) -> tuple[dict[str, object], dict[str, object]]:
    """Measure saving a turn of 100 tokens behind `depth` others, and waking all of it from the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.slot"
        store = Store(lambda: SlotFile.create(path), on_error=_raise)
        store.call(SlotFile.add_message, None, "user", "A question.", created=time.time())
        slot = _open_slot(runtime, store)
        prompt = random_ids(runtime.tokenizer.vocabulary, depth + _SAVED_TOKENS)
        for start in range(0, depth, N_UBATCH):
            slot.evaluate(prompt[start : min(start + N_UBATCH, depth)])
        if depth:
            slot.checkpoint(message=None, reason="message_end")
        store.flush()
        before = store.bytes_written
        slot.evaluate(prompt[depth:])
        saved = _stopwatch()
        slot.checkpoint(message=None, reason="message_end")
        store.flush()
        saving = {"bytes": store.bytes_written - before, "ms": saved()}
        store.close()

        since = _stopwatch()
        store = Store(lambda: SlotFile.open(path), on_error=_raise)
        store.call(read_transcript).result()
        transcript_ms = since()
        slot = _open_slot(runtime, store)
        reuse = slot.plan(prompt)
        if not slot.wake(reuse) or reuse.n != len(prompt):
            raise DormouseError("The state that was just saved could not be read back.")
        waking = {"transcript_ms": transcript_ms, "ready_ms": since()}
        store.close()
    place = {"n": _SAVED_TOKENS, "depth": depth}
    return {"test": "save", **place, **saving}, {"test": "wake", "n": len(prompt), "depth": 0, **waking}


def _open_slot(runtime: Runtime, store: Store) -> Slot:
    identity = store.call(SlotFile.put_model, runtime.identity()).result()
    return Slot(runtime.model, Archive(store, identity.id))


def _stopwatch() -> Callable[[], float]:
    """Start; what is returned tells the milliseconds since."""
    started = time.perf_counter()
    return lambda: round(1000 * (time.perf_counter() - started), 2)


def _raise(error: DormouseError) -> None:
    raise error
