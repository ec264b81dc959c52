"""Random walks through conversations, each step held against the truth.

The truth is a memory into which the same ids were fed in the same ubatches, from nothing. Which ubatches computed
what is noted in a ledger beside the slot, by patching the two places where ids enter it; so nothing that the slot
stores or restores takes part in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.conversation import Conversation, PendingTurn, read_transcript
from engine.errors import ContextFullError
from engine.generate import Cancelled, Limits
from engine.kernels.kv_types import KV_TYPES
from engine.memory import Memory
from engine.models import Model
from engine.runtime import Runtime
from engine.slot.archive import Archive
from engine.slot.donors import Donors
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.file.verify import verify
from engine.slot.segments import Run
from engine.slot.slot import Slot
from engine.turn import Result, Turn

MAX_CONVERSATIONS = 3
N_ORACLES = 6


@dataclass(frozen=True)
class Ubatch:
    """Ids that were evaluated together, and how many of them count: a fork may lie inside."""

    token_ids: tuple[int, ...]
    n_kept: int


History = tuple[Ubatch, ...]


class Ledger:
    """Which ubatches computed the rows of each segment, by slot file and segment."""

    def __init__(self) -> None:
        self._segments: dict[tuple[Store, int, int], History] = {}

    def note(self, archive: Archive, segment: int, history: History) -> None:
        self._segments[archive._store, archive._model, segment] = history

    def move(self, before: Store, after: Store) -> None:
        """Take what is known of a file to another store of it."""
        known = {key: history for key, history in self._segments.items() if key[0] is before}
        self._segments |= {(after, *key[1:]): history for key, history in known.items()}

    def of_path(self, archive: Archive, path: Sequence[Run]) -> History:
        return tuple(u for run in path for u in self.of_run(archive, run))

    def of_run(self, archive: Archive, run: Run) -> Iterator[Ubatch]:
        left = run.length
        for ubatch in self._segments[archive._store, archive._model, run.segment.id]:
            if left <= 0:
                return
            yield replace(ubatch, n_kept=min(left, ubatch.n_kept))
            left -= ubatch.n_kept
        assert left <= 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Note what slots evaluate and adopt."""
        evaluate, add_segment, adopt = Slot.evaluate, Archive.add_segment, Slot.adopt
        ubatches: dict[Slot, list[Ubatch]] = {}
        adopted: list[History] = []

        def noted_evaluate(slot: Slot, token_ids: np.ndarray, **kwargs: Any) -> Any:
            own = ubatches.setdefault(slot, [])
            own.append(Ubatch(tuple(token_ids.tolist()), len(token_ids)))
            self.waiting[slot._archive] = own
            try:
                return evaluate(slot, token_ids, **kwargs)
            except BaseException:
                own.pop()
                raise

        def noted_add(archive: Archive, after: Any, token_ids: np.ndarray) -> Any:
            cursor = add_segment(archive, after, token_ids)
            if adopted:
                self.note(archive, cursor.segment, adopted[0])
            else:
                waiting = self.waiting[archive]
                assert sum(len(u.token_ids) for u in waiting) == len(token_ids)
                self.note(archive, cursor.segment, tuple(waiting))
                waiting.clear()
            return cursor

        def noted_adopt(slot: Slot, donor: Archive, reuse: Any, *, name: str) -> bool:
            adopted.append(self.of_path(donor, donor.tree.path(reuse.cursor)))
            try:
                return adopt(slot, donor, reuse, name=name)
            finally:
                adopted.pop()

        self.waiting: dict[Archive, list[Ubatch]] = {}
        with (
            patch.object(Slot, "evaluate", noted_evaluate),
            patch.object(Archive, "add_segment", noted_add),
            patch.object(Slot, "adopt", noted_adopt),
        ):
            yield


class Oracle:
    """Memories that were only ever fed."""

    def __init__(self, model: Model, kv_type: str) -> None:
        self._model, self._kv_type = model, KV_TYPES[kv_type]
        self._known: list[tuple[History, Memory, np.ndarray | None]] = []

    def memory(self, history: History) -> tuple[Memory, np.ndarray | None]:
        """Return the memory after a history, and the hidden state of its last token if that was the last one fed."""
        best = max(
            (known for known in self._known if _extends(history, known[0])),
            key=lambda known: len(known[0]),
            default=None,
        )
        if best is None:
            best = ((), self._model.new_memory(self._kv_type), None)
        else:
            self._known.remove(best)
        done, memory, hidden = best
        for ubatch in history[len(done) :]:
            start = memory.n_tokens
            hidden = self._model.forward(np.array(ubatch.token_ids, np.int32), memory)[ubatch.n_kept - 1]
            if ubatch.n_kept < len(ubatch.token_ids):
                memory.rewind(start + ubatch.n_kept)
        self._known = [*self._known[1 - N_ORACLES :], (history, memory, hidden)]
        return memory, hidden


def _extends(history: History, known: History) -> bool:
    return history[: len(known)] == known


def assert_same(memory: Memory, truth: Memory) -> None:
    """Compare bit by bit all that going on from the present length needs."""
    n = truth.n_tokens
    assert [part.n_tokens for part in memory.parts] == [n] * len(memory.parts)
    for ours, theirs in zip(memory.parts, truth.parts, strict=True):
        lo = ours.first_row(n)
        assert theirs.has_rows(lo, n)
        if ours.row_nbytes and bytes(ours.export_rows(lo, n).data) != bytes(theirs.export_rows(lo, n).data):
            wrong = [i for i in range(lo, n) if ours.export_rows(i, i + 1).data != theirs.export_rows(i, i + 1).data]
            raise AssertionError(f"{ours.kind} rows {wrong[0]} to {wrong[-1]} ({len(wrong)}) of {n} are wrong")
    assert memory.checkpoint() == truth.checkpoint(), f"the states at {n} are wrong"


class ScriptedSampler:
    """Chooses tokens without looking at the logits, and ends after as many as it was told."""

    def __init__(self, n: int, seed: int, end_id: int, letters: Sequence[int]) -> None:
        self._left, self._end_id, self._letters = n, end_id, letters
        self._random = np.random.default_rng(seed)

    def sample(self, logits: np.ndarray, position: int) -> int:
        assert np.isfinite(logits).all()
        if self._left == 0:
            return self._end_id
        self._left -= 1
        return int(self._random.choice(self._letters))


@dataclass
class Open:
    """A conversation of the walk."""

    conversation: Conversation
    runtime: Runtime
    path: Path | None
    evaluated: int = 0
    notes: list[str] = field(default_factory=list)


# short ones mostly: what goes wrong, goes wrong at the seams
TEXTS = st.text("abcdefgh ", min_size=1, max_size=12).filter(str.strip) | st.integers(13, 90).map(lambda n: "ab " * n)
LENGTHS = st.integers(0, 6) | st.integers(0, 40) | st.just(200)
UBATCHES = st.sampled_from([1, 2, 3, 7, 16, 32, 64, 100, 512])
PICK = st.integers(0, 1 << 16)
STOPS = st.none() | st.none() | st.integers(0, 60)


class Walk(RuleBasedStateMachine):
    """What people do with conversations; subclasses give the runtimes."""

    runtimes: Callable[[], Sequence[Runtime]]
    folder: Callable[[], Path]
    n_steps = 0
    """Steps of all walks so far."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = type(self).folder()
        self._runtimes = type(self).runtimes()
        self._ledger = Ledger()
        self._patches = self._ledger.keeping()
        self._patches.__enter__()
        self._oracles: dict[tuple[str, str], Oracle] = {}
        self._donors = Donors(self._folder, index=None)
        self._open: list[Open] = []
        self._n_files = 0
        self._closed: dict[Path, Store] = {}  # files that nobody has open, and the store that had them last
        self._errors: list[Exception] = []

    def teardown(self) -> None:
        for one in self._open:
            one.conversation.close()
        self._donors.close()
        self._patches.__exit__(None, None, None)
        assert not self._errors, self._errors
        for path in self._folder.glob("*.slot"):
            assert verify(path) == [], path
        shutil.rmtree(self._folder)

    # --- what may happen -------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self._add(self._new_path())

    @precondition(lambda self: len(self._open) < MAX_CONVERSATIONS)
    @rule(temporary=st.booleans())
    def new(self, temporary: bool) -> None:
        self._add(None if temporary else self._new_path())

    @rule(which=PICK, text=TEXTS, n=LENGTHS, n_ubatch=UBATCHES, stop=STOPS, interval=st.sampled_from([8, 64, 512]))
    def send(self, which: int, text: str, n: int, n_ubatch: int, stop: int | None, interval: int) -> None:
        one = self._one(which)
        self._turn(one, one.conversation.begin_send(text).result(), n, n_ubatch, stop, interval)

    @rule(which=PICK, n=LENGTHS, n_ubatch=UBATCHES, stop=STOPS)
    def regenerate(self, which: int, n: int, n_ubatch: int, stop: int | None) -> None:
        one = self._one(which)
        if self._users(one):
            self._turn(one, one.conversation.begin_regenerate().result(), n, n_ubatch, stop)

    @rule(which=PICK, message=PICK, text=TEXTS, keep=st.integers(0, 40), n=LENGTHS, n_ubatch=UBATCHES, stop=STOPS)
    def edit(self, which: int, message: int, text: str, keep: int, n: int, n_ubatch: int, stop: int | None) -> None:
        one = self._one(which)
        if users := self._users(one):
            edited = users[message % len(users)]
            text = edited.text[:keep] + text
            self._turn(one, one.conversation.begin_edit(edited.id, text).result(), n, n_ubatch, stop)

    @rule(which=PICK, message=PICK, wake=st.booleans())
    def select(self, which: int, message: int, wake: bool) -> None:
        one = self._one(which)
        messages = list(one.conversation.store.call(read_transcript).result().messages)
        if messages:
            one.conversation.select(messages[message % len(messages)]).result()
            if wake:
                one.conversation.wake(one.runtime)
            self._check(one)

    @rule(which=PICK, wake=st.booleans())
    def sleep(self, which: int, wake: bool) -> None:
        one = self._one(which)
        one.conversation.put_to_sleep(reason="memory_budget")
        if wake:
            one.conversation.wake(one.runtime)
        self._check(one)

    @rule(which=PICK, wake=st.booleans())
    def reopen(self, which: int, wake: bool) -> None:
        one = self._one(which)
        if one.path is not None:
            one.conversation.close()
            self._go_on_with(one, one.path, wake=wake)

    @precondition(lambda self: len(self._open) > 1)
    @rule(which=PICK)
    def leave(self, which: int) -> None:
        """Close a conversation; it may be a donor from now on."""
        one = self._one(which)
        one.conversation.close()
        self._open.remove(one)
        if one.path is not None:
            self._closed[one.path] = one.conversation.store

    @precondition(lambda self: self._closed and len(self._open) < MAX_CONVERSATIONS)
    @rule(which=PICK)
    def come_back(self, which: int) -> None:
        path = sorted(self._closed)[which % len(self._closed)]
        one = self._add(path, before=self._closed.pop(path))
        self._check(one)

    @rule(which=PICK, text=TEXTS, n=LENGTHS, at=st.integers(0, 80), n_ubatch=UBATCHES)
    def crash(self, which: int, text: str, n: int, at: int, n_ubatch: int) -> None:
        """Go on with what lies on the disk in the middle of a turn."""
        one = self._one(which)
        if one.path is None:
            return
        copy = self._new_path()

        def on_step(step: int) -> None:
            if step == at:
                one.conversation.store.flush()
                for suffix in ("", "-journal"):
                    with suppress(FileNotFoundError):
                        shutil.copy(f"{one.path}{suffix}", f"{copy}{suffix}")

        self._turn(one, one.conversation.begin_send(text).result(), n, n_ubatch, on_step=on_step)
        if copy.exists():
            one.conversation.close()
            one.path.unlink()
            self._go_on_with(one, copy, wake=True)

    @rule(which=PICK)
    def save_as(self, which: int) -> None:
        one = self._one(which)
        if one.path is not None:  # stays behind, as a donor
            self._closed[one.path] = one.conversation.store
        one.path = self._new_path()
        one.conversation.save_as(one.path)
        self._check(one)

    @rule(which=PICK, runtime=PICK)
    def change_model(self, which: int, runtime: int) -> None:
        """Go on with another model, K/V type or budget."""
        one = self._one(which)
        one.runtime = self._runtimes[runtime % len(self._runtimes)]
        one.conversation.unload()

    # --- how it is held against the truth ---------------------------------------------------------------------

    def _one(self, which: int) -> Open:
        type(self).n_steps += 1
        return self._open[which % len(self._open)]

    def _new_path(self) -> Path:
        self._n_files += 1
        return self._folder / f"{self._n_files}.slot"

    def _store(self, path: Path | None) -> Store:
        def open_file() -> SlotFile:
            if path is None:
                return SlotFile.create(":memory:")
            return SlotFile.open(path) if path.exists() else SlotFile.create(path)

        return Store(open_file, on_error=self._errors.append)

    def _add(self, path: Path | None, *, before: Store | None = None) -> Open:
        store = self._store(path)
        if before is not None:
            self._ledger.move(before, store)
        one = Open(Conversation(store, path), self._runtimes[0], path)
        self._open.append(one)
        return one

    def _go_on_with(self, one: Open, path: Path, *, wake: bool) -> None:
        before = one.conversation.store
        one.path, one.conversation = path, Conversation(self._store(path), path)
        self._ledger.move(before, one.conversation.store)
        if wake:
            one.conversation.wake(one.runtime)
        self._check(one)

    def _users(self, one: Open) -> list[Any]:
        return one.conversation.store.call(read_transcript).result().user_messages()

    def _turn(
        self,
        one: Open,
        pending: PendingTurn,
        n: int,
        n_ubatch: int,
        stop: int | None = None,
        interval: int = 64,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        runtime, conversation = one.runtime, one.conversation
        vocabulary = runtime.tokenizer.vocabulary
        letters = runtime.tokenizer.encode("abcdefgh", parse_special=False).tolist()
        (end_id, *_) = sorted(vocabulary.special.end_of_generation)
        looks = 0

        def check() -> None:
            nonlocal looks
            looks += 1
            if stop is not None and looks > stop:
                raise Cancelled

        def borrow(slot: Slot, prompt: np.ndarray) -> str | None:
            open_files = {other.path: other.conversation.store for other in self._open if other.path}
            model = runtime.identity()
            for path, before in self._closed.items():  # which the donors open by themselves
                open_files[path] = self._store(path)
                self._ledger.move(before, open_files[path])
            try:
                return self._donors.supply(
                    slot, prompt, model=model, own=one.path, open_files=open_files, note=self._errors.append
                )
            finally:
                for path in self._closed:
                    open_files[path].close()
                    self._closed[path] = open_files[path]

        turn = Turn(
            conversation,
            pending,
            runtime,
            sampler=ScriptedSampler(n, len(pending.path), end_id, letters),
            limits=Limits(runtime.n_ctx, n_ubatch, None, checkpoint_interval=interval),
            check=check,
            borrow=borrow,
        )
        evaluated, evaluate = 0, Slot.evaluate

        def counted(slot: Slot, token_ids: np.ndarray, **kwargs: Any) -> Any:
            nonlocal evaluated
            hidden = evaluate(slot, token_ids, **kwargs)
            evaluated += len(token_ids)
            return hidden

        result = None
        with patch.object(Slot, "evaluate", counted):
            try:
                for number, step in enumerate(turn.run()):
                    on_step(number)
                    result = step if isinstance(step, Result) else None
            except ContextFullError:
                self._check(one)
                return
        assert result is not None
        self._check(one)
        slot = conversation.slot_for(runtime)
        assert slot._archive.nbytes <= runtime.settings.disk_budget
        self._check_receipt(one, pending, result, evaluated, was_stopped=stop is not None and looks > stop)

    def _check_receipt(
        self, one: Open, pending: PendingTurn, result: Result, evaluated: int, *, was_stopped: bool
    ) -> None:
        receipt = result.receipt
        prompt = one.conversation.prompt(pending, one.runtime).token_ids
        slot = one.conversation.slot_for(one.runtime)
        said = len(result.token_ids)
        assert (receipt.source == "cold") == (receipt.cache_n == 0)
        assert receipt.predicted_n == said
        if not was_stopped:
            assert receipt.cache_n + receipt.prompt_n == len(prompt)
            assert evaluated == receipt.prompt_n + said - (result.reply.finish_reason == "length")
        ids = np.concatenate([prompt, np.array(result.token_ids, np.int32)])
        slot._flush()
        seen = slot._archive.tree.token_ids(slot._cursor)
        assert np.array_equal(seen, ids[: len(seen)])

    def _check(self, one: Open) -> None:
        """Hold what is in memory against the truth."""
        slot = one.conversation._slot
        if slot is None:
            return
        archive = slot._archive
        history = self._ledger.of_path(archive, archive.tree.path(slot._cursor))
        history += tuple(self._ledger.waiting.get(archive, ())) if slot._pending else ()
        runtime = one.conversation._runtime
        assert runtime is not None
        key = runtime.fingerprint, runtime.settings.kv_type
        oracle = self._oracles.setdefault(key, Oracle(runtime.model, runtime.settings.kv_type))
        truth, hidden = oracle.memory(history)
        assert_same(slot.memory, truth)
        contents = [(c.message, c.tokenizer) for c in one.conversation.store.call(SlotFile.contents).result()]
        assert len(contents) == len(set(contents)), "ids that were ours were taken for somebody else's"
        if slot.hidden is not None and hidden is not None:
            assert np.array_equal(slot.hidden[0], hidden)
