"""The session: the one thread that owns the model and all live slots.

Jobs go in by a queue, frozen events come out through one callback, each naming its job. The callback is called from
the session's threads and must return soon. Nothing here waits for a window, and no failure ends the thread.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread

from engine import events
from engine.arrays import TokenIds
from engine.conversation import Conversation, PendingTurn, known_models, read_transcript
from engine.errors import DormouseError
from engine.generate import Cancelled, Limits
from engine.kernels import Kernels, load_kernels
from engine.paths import cache_folder
from engine.runtime import EngineSettings, Runtime
from engine.sampling import Sampler, SamplingParameters
from engine.slot.donors import Donors
from engine.slot.file.repair import open_repaired
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.slot import Slot
from engine.slot.transcript import Transcript
from engine.turn import Progress, Result, Started, Text, Turn


@dataclass(frozen=True)
class Job:
    """Something asked of the session; its events carry its id."""

    id: int
    conversation: int | None
    _cancelled: Flag = field(default_factory=Flag, repr=False, compare=False)

    def cancel(self) -> None:
        """Ask the job to end soon; what it did so far stays."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise Cancelled if the job was cancelled."""
        if self._cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True)
class TurnSettings:
    """How a reply is written."""

    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise DormouseError(f"A reply must have at least one token, not {self.max_tokens}.")


class Session:
    """Runs jobs for any number of conversations with one model.

    All methods may be called from any thread and return at once. Wrong arguments raise DormouseError; everything
    else is told by events.
    """

    def __init__(
        self,
        on_event: Callable[[events.Event], None],
        *,
        kernels: str | None = None,
        n_threads: int | None = None,
        library: Path | None = None,
    ) -> None:
        """Start the thread. Conversations take shared beginnings from the slot files in the folder `library` too."""
        self._emit = on_event
        self._wanted_kernels, self._wanted_threads = kernels, n_threads
        self._kernels: Kernels | None = None  # chosen for the first model
        self._runtime: Runtime | None = None
        self._conversations: dict[int, Conversation] = {}
        self._ids = itertools.count(1)
        self._queue: SimpleQueue[tuple[Job, Callable[[Job], None]] | None] = SimpleQueue()
        self._running: Job | None = None
        self._donors = Donors(library, index=library and _prefix_index())
        self._used: list[Conversation] = []  # with a live slot; the one used last is last
        self._thread = Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def load_model(self, path: Path, settings: EngineSettings | None = None) -> Job:
        """Load a model in place of the present one.

        Events: KernelsCompiling (on the first start), ModelLoading, then ModelLoaded or LoadCancelled or Failed.
        """
        chosen = settings or EngineSettings()
        return self._submit(None, lambda job: self._load(job, path, chosen))

    def open(self, path: Path | None) -> Job:
        """Open a slot file, or create it; None opens a temporary conversation that is never written to disk.

        Events: Opened or Failed. The job's `conversation` names the conversation from now on until it is closed, also
        in methods called before it is open: they wait their turn. Where it could not be opened, their jobs fail too.
        """
        job = Job(next(self._ids), next(self._ids))
        assert job.conversation is not None

        def warn(error: DormouseError) -> None:
            self._emit(events.Warned(job.id, job.conversation, str(error)))

        store = Store(lambda: _open_file(path), on_error=warn)
        self._conversations[job.conversation] = Conversation(store, path)

        def opened(future: Future[events.Opened]) -> None:
            error = future.exception()
            if error is None:
                self._emit(future.result())
            else:
                self._fail(job, error)

        def read(file: SlotFile) -> events.Opened:
            return events.Opened(
                job.id,
                job.conversation,
                path=path,
                transcript=read_transcript(file),
                receipts=tuple(file.receipts()),
                models=known_models(file),
                damage=(*file.notes, *file.damage, *file.state_damage),
            )

        store.call(read).add_done_callback(opened)
        return job

    def send(
        self, conversation: int, text: str, *, system: str | None = None, settings: TurnSettings | None = None
    ) -> Job:
        """Send a message; events: TurnSaved, PrefillStarted, PrefillProgress, TokenGenerated, TurnFinished, Failed."""
        return self._turn(conversation, lambda c: c.begin_send(text, system=system), settings)

    def regenerate(self, conversation: int, *, settings: TurnSettings | None = None) -> Job:
        """Answer the last user message again, as another version; events as for `send`."""
        return self._turn(conversation, Conversation.begin_regenerate, settings)

    def edit(self, conversation: int, message: int, text: str, *, settings: TurnSettings | None = None) -> Job:
        """Replace a user message by another version, as a branch, and answer that; events as for `send`."""
        return self._turn(conversation, lambda c: c.begin_edit(message, text), settings)

    def select(self, conversation: int, message: int) -> Job:
        """Go to the newest branch through a message; events: Selected or Failed."""
        job = self._job(conversation)

        def selected(future: Future[Transcript]) -> None:
            error = future.exception()
            if error is None:
                self._emit(events.Selected(job.id, conversation, future.result()))
            else:
                self._fail(job, error)

        self._conversation(conversation).select(message).add_done_callback(selected)
        return job

    def wake(self, conversation: int) -> Job:
        """Bring the stored state of the current branch into memory, before it is needed; events: Woken or Failed."""
        woken = self._conversation(conversation)

        def wake(job: Job) -> None:
            if self._runtime is None:
                raise DormouseError("No model is loaded.")
            self._make_room(woken)
            reuse, source, total = woken.wake(self._runtime)
            models = woken.store.call(known_models).result()
            self._emit(events.Woken(job.id, conversation, reuse.n, total - reuse.n, source, reuse.reason, models))

        return self._submit(conversation, wake)

    def save_as(self, conversation: int, path: Path) -> Job:
        """Write a whole copy of a conversation, replacing what is there, and go on in it; events: SavedAs or Failed."""
        saved = self._conversation(conversation)

        def save(job: Job) -> None:
            saved.save_as(path)
            self._emit(events.SavedAs(job.id, conversation, path))

        return self._submit(conversation, save)

    def close_conversation(self, conversation: int) -> Job:
        """Write everything of a conversation and close its file; events: Closed or Failed."""
        opened = self._conversation(conversation)

        def close(job: Job) -> None:
            self._conversations.pop(conversation, None)
            opened.close()
            self._emit(events.Closed(job.id, conversation))

        return self._submit(conversation, close)

    def close(self) -> None:
        """Cancel what runs and waits, write everything, and end the thread. May be called again."""
        self._queue.put(None)
        while self._thread.is_alive():
            if (running := self._running) is not None:
                running.cancel()
            self._thread.join(0.02)
        for conversation in self._conversations.values():
            conversation.close()
        self._conversations.clear()
        if self._kernels is not None:
            self._kernels.close()

    # --- in the engine's thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            job, work = item
            self._running = job
            try:
                work(job)
            except Exception as error:  # the thread's edge: nothing passes it
                self._fail(job, error)
            finally:
                self._running = None
        self._donors.close()

    def _load(self, job: Job, path: Path, settings: EngineSettings) -> None:
        started = time.perf_counter()

        def progress(done: int, total: int) -> None:
            job.check()
            self._emit(events.ModelLoading(job.id, None, done, total))

        try:
            kernels = self._choose_kernels()
            self._runtime = runtime = Runtime.load(path, kernels, settings, progress=progress)
        except Cancelled:
            self._emit(events.LoadCancelled(job.id, None))
            return
        for conversation in list(self._conversations.values()):
            conversation.unload()
        self._emit(
            events.ModelLoaded(
                job.id,
                None,
                path=path,
                name=runtime.model.config.name,
                architecture=runtime.model.config.architecture,
                fingerprint=runtime.fingerprint,
                kernels=kernels.name,
                kernels_note=kernels.note,
                n_threads=kernels.n_threads,
                n_ctx=runtime.n_ctx,
                template_is_fallback=runtime.template.is_fallback,
                load_ms=1000 * (time.perf_counter() - started),
            )
        )

    def _choose_kernels(self) -> Kernels:
        """Return the kernels, the same from the first model on."""

        def compiling(part: str) -> None:
            if self._running is not None:
                self._emit(events.KernelsCompiling(self._running.id, None, part))

        if self._kernels is None:
            self._kernels = load_kernels(
                self._wanted_kernels,
                n_threads=self._wanted_threads,
                cache_folder=_cached("kernels"),
                compiling=compiling,
            )
        return self._kernels

    def _answer(self, job: Job, begun: Future[PendingTurn], settings: TurnSettings) -> None:
        pending = begun.result()
        assert job.conversation is not None
        conversation = self._conversation(job.conversation)
        if self._runtime is None:
            conversation.finish(pending.reply, text="", finish_reason="failed")
            raise DormouseError("No model is loaded: load one, and answer the message again.")
        chosen = self._runtime.settings
        self._make_room(conversation)
        steps = Turn(
            conversation,
            pending,
            self._runtime,
            sampler=Sampler(settings.sampling, version=pending.version),
            limits=Limits(
                self._runtime.n_ctx,
                chosen.n_ubatch,
                settings.max_tokens,
                checkpoint_interval=chosen.checkpoint_interval,
            ),
            check=job.check,
            borrow=lambda slot, prompt: self._borrow(conversation, slot, prompt),
        ).run()
        for step in steps:
            match step:
                case Started(cache_n, total, source, reason):
                    prompt_n = total - cache_n
                    self._emit(events.PrefillStarted(job.id, job.conversation, cache_n, prompt_n, source, reason))
                case Progress(cache_n, done, total):
                    self._emit(events.PrefillProgress(job.id, job.conversation, cache_n, done, total))
                case Text(token_id, text):
                    self._emit(events.TokenGenerated(job.id, job.conversation, pending.reply.id, token_id, text))
                case Result(reply, token_ids, receipt, digest):
                    self._emit(events.TurnFinished(job.id, job.conversation, reply, token_ids, receipt, digest))

    def _borrow(self, conversation: Conversation, slot: Slot, prompt: TokenIds) -> str | None:
        assert self._runtime is not None
        open_files = {c.path: c.store for c in list(self._conversations.values()) if c.path is not None}
        model = self._runtime.identity()
        return self._donors.supply(slot, prompt, model=model, own=conversation.path, open_files=open_files)

    def _make_room(self, conversation: Conversation) -> None:
        """Use a conversation now; let those fall asleep that were used longest ago and exceed the budget."""
        assert self._runtime is not None
        self._used = [other for other in self._used if other is not conversation and other.nbytes] + [conversation]
        for other in self._used[:-1]:
            if sum(c.nbytes for c in self._used[:-1]) <= self._runtime.settings.memory_budget:
                break
            other.put_to_sleep(reason="memory_budget")

    # --- jobs ------------------------------------------------------------------------------------------------

    def _turn(
        self,
        conversation: int,
        begin: Callable[[Conversation], Future[PendingTurn]],
        settings: TurnSettings | None,
    ) -> Job:
        job = self._job(conversation)
        begun = begin(self._conversation(conversation))

        def saved(future: Future[PendingTurn]) -> None:
            if future.exception() is None:
                pending = future.result()
                self._emit(events.TurnSaved(job.id, conversation, pending.transcript, pending.reply))

        begun.add_done_callback(saved)
        self._queue.put((job, lambda job: self._answer(job, begun, settings or TurnSettings())))
        return job

    def _submit(self, conversation: int | None, work: Callable[[Job], None]) -> Job:
        job = self._job(conversation)
        self._queue.put((job, work))
        return job

    def _job(self, conversation: int | None) -> Job:
        return Job(next(self._ids), conversation)

    def _conversation(self, id: int) -> Conversation:
        conversation = self._conversations.get(id)
        if conversation is None:
            raise DormouseError("The conversation is closed.")
        return conversation

    def _fail(self, job: Job, error: BaseException) -> None:
        if isinstance(error, DormouseError):
            self._emit(events.Failed(job.id, job.conversation, str(error)))
            return
        details = "".join(traceback.format_exception(error))
        text = f"Something went wrong inside Dormouse ({type(error).__name__}: {error})."
        self._emit(events.Failed(job.id, job.conversation, text, details))


def _prefix_index() -> Path | None:
    return _cached("prefixes.sqlite")


def _cached(name: str) -> Path | None:
    try:
        return cache_folder() / name
    except DormouseError:  # what can't be kept is found out again
        return None


def _open_file(path: Path | None) -> SlotFile:
    if path is None:
        return SlotFile.create(":memory:")
    return open_repaired(path) if path.exists() else SlotFile.create(path)
