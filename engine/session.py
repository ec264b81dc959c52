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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TypeVar

from engine import events
from engine.arrays import TokenIds
from engine.conversation import Conversation, PendingTurn, known_models
from engine.errors import ContextFullError, DormouseError, SlotFileError
from engine.generate import Cancelled, Limits
from engine.jobs import Job, JobQueue, Waiting
from engine.kernels import Kernels, load_kernels
from engine.opening import open_file, read_opened
from engine.paths import cache_folder, kernels_folder
from engine.runtime import EngineSettings, Runtime
from engine.sampling import Sampler, SamplingParameters
from engine.slot.donors import Donors
from engine.slot.file.store import Store
from engine.slot.records import Message, Receipt
from engine.slot.slot import Slot
from engine.turn import Progress, Result, Started, Text, Turn

T = TypeVar("T")


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
        self._queue = JobQueue()
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
        return self._submit(None, lambda job: self._load(job, path, chosen), cancelled=events.LoadCancelled)

    def open(self, path: Path | None) -> Job:
        """Open a slot file, or create it; None opens a temporary conversation that is never written to disk.

        Events: Opened, Cancelled or Failed. The job's `conversation` names the conversation from now on until it is
        closed, also in methods called before it is open: they wait their turn. Where it could not be opened, their jobs
        fail too.
        """
        id, conversation = next(self._ids), next(self._ids)

        def warn(error: DormouseError) -> None:
            self._emit(events.Warned(id, conversation, str(error)))

        store = Store(lambda: open_file(path), on_error=warn)
        self._conversations[conversation] = Conversation(store, path)
        opened = store.call(lambda file: read_opened(file, id, conversation))
        job = Job(id, conversation, lambda _job: opened.cancel())
        self._follow(job, opened, lambda event: event)
        return job

    def send(
        self, conversation: int, text: str, *, system: str | None = None, settings: TurnSettings | None = None
    ) -> Job:
        """Send a message; events: TurnSaved, PrefillStarted, PrefillProgress, TokenGenerated, TurnFinished, Failed."""
        return self._turn(conversation, lambda c: c.begin_send(text, system=system, runtime=self._runtime), settings)

    def regenerate(self, conversation: int, *, settings: TurnSettings | None = None) -> Job:
        """Answer the last user message again, as another version; events as for `send`."""
        return self._turn(conversation, lambda c: c.begin_regenerate(runtime=self._runtime), settings)

    def edit(self, conversation: int, message: int, text: str, *, settings: TurnSettings | None = None) -> Job:
        """Replace a user message by another version, as a branch, and answer that; events as for `send`."""
        return self._turn(conversation, lambda c: c.begin_edit(message, text, runtime=self._runtime), settings)

    def select(self, conversation: int, message: int) -> Job:
        """Go to the newest branch through a message; events: Selected, Cancelled or Failed."""
        selected = self._conversation(conversation).select(message)
        job = Job(next(self._ids), conversation, lambda _job: selected.cancel())
        self._follow(job, selected, lambda transcript: events.Selected(job.id, conversation, transcript))
        return job

    def wake(self, conversation: int) -> Job:
        """Bring the stored state of the current branch into memory, before it is needed.

        Events: Woken, Cancelled or Failed.
        """
        woken = self._conversation(conversation)

        def wake(job: Job) -> None:
            if self._runtime is None:
                raise DormouseError("No model is loaded.")
            self._make_room(woken)
            try:
                reuse, source, total = woken.wake(self._runtime, check=job.check)
                models = woken.store.call(known_models).result()
            except Cancelled:
                self._emit(events.Cancelled(job.id, conversation))
                return
            except Exception as error:  # the next turn begins anew
                woken.note("waking", error)
                woken.unload()
                raise
            self._emit(events.Woken(job.id, conversation, reuse.n, total - reuse.n, source, reuse.reason, models))

        return self._submit(conversation, wake)

    def save_as(self, conversation: int, path: Path) -> Job:
        """Write a whole copy of a conversation, replacing what is there, and go on in it.

        Events: SavedAs, Cancelled or Failed. Once it began, it is not cancelled.
        """
        saved = self._conversation(conversation)

        def save(job: Job) -> None:
            saved.save_as(path)
            self._emit(events.SavedAs(job.id, conversation, path))

        return self._submit(conversation, save, survives=True)

    def repair(self, conversation: int) -> Job:
        """Put a repaired file in the place of a damaged one, which is kept, and go on in that.

        Events: Opened, whose `damage` tells of it, Cancelled or Failed. Once it began, it is not cancelled.
        """
        damaged = self._conversation(conversation)

        def repair(job: Job) -> None:
            repaired = damaged.repair()
            opened = damaged.store.call(read_opened, job.id, conversation).result()
            if repaired is not None:
                opened = replace(opened, damage=(str(repaired), *opened.damage))
            self._emit(opened)

        return self._submit(conversation, repair)

    def close_conversation(self, conversation: int) -> Job:
        """Write everything of a conversation and close its file; events: Closed, Cancelled or Failed."""
        opened = self._conversation(conversation)

        def close(job: Job) -> None:
            opened.close()
            self._conversations.pop(conversation, None)
            self._emit(events.Closed(job.id, conversation))

        return self._submit(conversation, close, survives=True)

    def forget(self, path: Path) -> None:
        """Keep nothing of what was known of a slot file that was deleted."""
        self._donors.forget(path)

    def close(self, *, engine_seconds: float = 10.0, disk_seconds: float = 60.0) -> list[str]:
        """Cancel what runs and waits, write everything, and end the thread. May be called again.

        This has an end whatever a model, a template or a disk does: what takes longer than so many seconds is left to
        itself, and keeps the process no longer alive. Returns what may not be saved, in sentences. Nothing is told by
        events any more.
        """
        for waiting in self._queue.end():
            self._withdraw(waiting)
        deadline = time.monotonic() + engine_seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            if (running := self._running) is not None:
                running.cancel()
            self._thread.join(0.02)
        unsaved = self._close_files(time.monotonic() + disk_seconds)
        self._thread.join(0)
        if self._thread.is_alive():
            unsaved.append("The model did not stop in time: the end of what it did may not be saved.")
        elif self._kernels is not None:
            self._kernels.close()
        self._emit = lambda _event: None
        return unsaved

    def _close_files(self, deadline: float) -> list[str]:
        """Close all files at the same time; return which of them may not be saved."""
        unsaved = []
        conversations = list(self._conversations.values())
        for conversation in conversations:
            conversation.store.end()
        for conversation in conversations:
            try:
                conversation.close(max(0.0, deadline - time.monotonic()))
            except SlotFileError:
                conversation.store.abandon()
                name = conversation.path or "the temporary conversation"
                unsaved.append(f"The disk does not answer: the newest part of {name} may not be saved.")
        self._conversations.clear()
        return unsaved

    # --- in the engine's thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._serve_once():
            pass
        with suppress(Exception):  # it can be made again
            self._donors.close()
        self._runtime = None  # and the process of its chat template

    def _serve_once(self) -> bool:
        """Run the next job, which nobody holds on to then, nor what it used; False at the end."""
        waiting = self._queue.take()
        if waiting is None:
            return False
        self._running = waiting.job
        try:
            waiting.run(waiting.job)
        except Exception as error:  # the thread's edge: nothing passes it
            self._fail(waiting.job, error)
        finally:
            self._running = None
        return True

    def _load(self, job: Job, path: Path, settings: EngineSettings) -> None:
        started = time.perf_counter()

        def progress(done: int, total: int) -> None:
            job.check()
            self._emit(events.ModelLoading(job.id, None, done, total))

        try:
            kernels = self._choose_kernels()
            self._runtime = runtime = Runtime.load(path, kernels, settings, progress=progress, check=job.check)
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
                cache_folder=_kernels_folder(),
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
        turn = Turn(
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
        )
        try:
            self._run(turn, job)
        except Cancelled:
            self._take_back(job, conversation, begun)
        except ContextFullError as error:
            (words,) = [m.text for m in pending.path if m.id in pending.added and m.role == "user"] or [""]
            transcript = conversation.withdraw(pending)
            self._emit(events.Refused(job.id, job.conversation, str(error), words=words, transcript=transcript))

    def _run(self, turn: Turn, job: Job) -> None:
        for step in turn.run():
            match step:
                case Started(cache_n, total, source, reason):
                    prompt_n = total - cache_n
                    self._emit(events.PrefillStarted(job.id, job.conversation, cache_n, prompt_n, source, reason))
                case Progress(cache_n, done, total):
                    self._emit(events.PrefillProgress(job.id, job.conversation, cache_n, done, total))
                case Text(token_id, text):
                    self._emit(events.TokenGenerated(job.id, job.conversation, turn.pending.reply.id, token_id, text))
                case Result(reply, token_ids, receipt, digest):
                    self._emit(events.TurnFinished(job.id, job.conversation, reply, token_ids, receipt, digest))

    def _borrow(self, conversation: Conversation, slot: Slot, prompt: TokenIds) -> str | None:
        assert self._runtime is not None
        open_files = {c.path: c.store for c in list(self._conversations.values()) if c.path is not None}
        model = self._runtime.identity()
        return self._donors.supply(
            slot,
            prompt,
            model=model,
            own=conversation.path,
            open_files=open_files,
            note=lambda error: conversation.note("sharing", error),
        )

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
        answered = self._conversation(conversation)
        begun = begin(answered)

        def saved(future: Future[PendingTurn]) -> None:
            if (error := future.exception()) is None:
                pending = future.result()
                self._emit(events.TurnSaved(job.id, conversation, pending.transcript, pending.reply))
            elif self._queue.withdraw(job) is not None:  # otherwise the engine's thread finds out, or has
                self._fail(job, error)

        begun.add_done_callback(saved)
        self._put(
            Waiting(
                job,
                lambda job: self._answer(job, begun, settings or TurnSettings()),
                lambda job: self._take_back(job, answered, begun),
            )
        )
        return job

    def _take_back(self, job: Job, conversation: Conversation, begun: Future[PendingTurn]) -> None:
        """Cancel a turn of which nothing is done yet but that its words are saved."""

        def finished(reply: Message) -> events.TurnFinished:
            return events.TurnFinished(job.id, job.conversation, reply, (), _nothing_done(reply), None)

        self._follow(job, conversation.cancel_turn(begun), finished)

    def _submit(
        self,
        conversation: int | None,
        run: Callable[[Job], None],
        *,
        cancelled: type[events.Cancelled] = events.Cancelled,
        survives: bool = False,
    ) -> Job:
        job = self._job(conversation)
        self._put(Waiting(job, run, lambda job: self._emit(cancelled(job.id, conversation)), survives))
        return job

    def _job(self, conversation: int | None) -> Job:
        def cancel(job: Job) -> None:
            if (waiting := self._queue.withdraw(job)) is not None:
                self._withdraw(waiting)

        return Job(next(self._ids), conversation, cancel)

    def _put(self, waiting: Waiting) -> None:
        if not self._queue.put(waiting):
            self._withdraw(waiting)

    def _withdraw(self, waiting: Waiting) -> None:
        try:
            waiting.withdraw(waiting.job)
        except DormouseError as error:  # its conversation was closed meanwhile
            self._fail(waiting.job, error)

    def _follow(self, job: Job, work: Future[T], event: Callable[[T], events.Event]) -> None:
        """Tell how a store's work on a job ends."""

        def tell(future: Future[T]) -> None:
            if future.cancelled():
                self._emit(events.Cancelled(job.id, job.conversation))
            elif (error := future.exception()) is None:
                self._emit(event(future.result()))
            else:
                self._fail(job, error)

        work.add_done_callback(tell)

    def _conversation(self, id: int) -> Conversation:
        conversation = self._conversations.get(id)
        if conversation is None:
            raise DormouseError("The conversation is closed.")
        return conversation

    def _fail(self, job: Job, error: BaseException) -> None:
        if isinstance(error, DormouseError):
            kind = events.Refused if isinstance(error, ContextFullError) else events.Failed
            self._emit(kind(job.id, job.conversation, str(error)))
            return
        details = "".join(traceback.format_exception(error))
        text = f"Something went wrong inside Dormouse ({type(error).__name__}: {error})."
        self._emit(events.Failed(job.id, job.conversation, text, details))


def _nothing_done(reply: Message) -> Receipt:
    """Return the receipt of a turn that never began. It is told, and not stored: no model took part in it."""
    return Receipt(reply.id, 0, 0, 0, "cold", "none", 0.0, 0, 0.0, "", time.time())


def _prefix_index() -> Path | None:
    try:
        return cache_folder() / "prefixes.sqlite"
    except DormouseError:  # what can't be kept is found out again
        return None


def _kernels_folder() -> Path | None:
    try:
        return kernels_folder()
    except DormouseError:  # and compiled again
        return None
