"""The thread that owns a slot file: reads and writes for other threads, in the order in which they were asked."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from engine.errors import DormouseError, SlotFileError
from engine.slot.file.disk import require_space
from engine.slot.file.repair import Repaired, repair_open
from engine.slot.file.slot_file import SlotFile

P = ParamSpec("P")
T = TypeVar("T")

_BATCH_BYTES = 16 << 20  # of posted writes in one transaction
_LARGE = 1 << 20  # bytes from which on free space is asked for
CLOSE_SECONDS = 120.0  # that a disk may take


@dataclass(frozen=True)
class _Job:
    run: Callable[[SlotFile], Any]
    nbytes: int = 0
    future: Future[Any] | None = None  # None for a posted write


class Store:
    """Does jobs on one slot file in one thread.

    What must be known to be saved, or is read, goes through `call`. State is handed over with `post`: it may fail,
    and then the conversation goes on without it.
    """

    def __init__(
        self,
        opener: Callable[[], SlotFile],
        *,
        on_error: Callable[[DormouseError], None],
        max_pending: int = 256 << 20,
    ) -> None:
        """Start to open a slot file in the new thread, which is also where `on_error` is called.

        `on_error` must neither raise nor wait for this store. `max_pending` bytes of posted writes may wait before
        `post` does. Where `opener` fails, every call answers with what it raised.
        """
        self._on_error = on_error
        self._max_pending = max_pending
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._pending = 0
        self._closed = False
        self._failure: DormouseError | None = None
        self._slot_file: SlotFile | None = None
        # a daemon that is closed at exit: a forgotten store is written, and never keeps the process alive
        self._thread = threading.Thread(target=self._work, args=(opener,), name="slot file", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def failure(self) -> DormouseError | None:
        """Why posted writes are given up, None while they work."""
        return self._failure

    @property
    def pending(self) -> int:
        """Bytes of posted writes that wait."""
        return self._pending

    @property
    def bytes_written(self) -> int:
        """Bytes of all rows written since the file was opened, without SQLite's own."""
        return self._slot_file.bytes_written if self._slot_file else 0

    def call(self, run: Callable[Concatenate[SlotFile, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `run(slot_file, ...)` done after everything asked before; the future has its result or exception.

        Raises `SlotFileError` if the store is closed.
        """
        future: Future[T] = Future()
        self._put(_Job(lambda slot_file: run(slot_file, *args, **kwargs), future=future))
        return future

    def post(self, run: Callable[[SlotFile], object], *, nbytes: int) -> None:
        """Have `run(slot_file)` write `nbytes` of state, several such in one transaction; wait only for room.

        The first failure goes to `on_error`; what is posted afterwards is given up until `retry`, because state that
        builds on missing state is of no use. Raises `SlotFileError` if the store is closed.
        """
        self._put(_Job(run, nbytes))

    def retry(self) -> None:
        """Try posted writes again from now on; what was given up meanwhile is missing."""

        def forget(_: SlotFile) -> None:
            self._failure = None

        self.call(forget).result()

    def move(self, path: Path) -> Future[None]:
        """Write a whole copy of the file to `path`, replacing what is there, and go on in that.

        The file before stays as it is. Where that fails, the store goes on in it.
        """

        def replace(slot_file: SlotFile) -> None:
            slot_file.save_copy(path)
            self._slot_file = SlotFile.open(path)
            slot_file.close()

        return self.call(replace)

    def repair(self) -> Future[Repaired | None]:
        """Put a repaired file in the place of this one and go on in that; None if there was nothing to repair.

        Where that fails, the store goes on in the file as it is.
        """

        def replace(slot_file: SlotFile) -> Repaired | None:
            repaired = repair_open(slot_file)
            if repaired is not None and slot_file.path is not None:
                slot_file.close()  # which deletes a journal of that name: the fresh file must not have one yet
                self._slot_file = SlotFile.open(slot_file.path)
                self._failure = None
            return repaired

        return self.call(replace)

    def tell(self, text: str) -> None:
        """Tell the person something about the file, the way that failures are told."""
        self._on_error(SlotFileError(text))

    def flush(self) -> None:
        """Wait until everything asked so far is done."""
        self.call(lambda _: None).result()

    def end(self) -> None:
        """Let nothing more in; what was asked is done, and the file closed then."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Do what was asked, then close the file; may be called again.

        Raises `SlotFileError` if that takes longer.
        """
        self.end()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise SlotFileError("The disk does not answer: the newest part of the conversation may not be saved.")
        self.abandon()

    def abandon(self) -> None:
        """Wait no more for what was asked to be done, not even when the process ends."""
        atexit.unregister(self.close)

    def _put(self, job: _Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(job))
            if self._closed:
                raise SlotFileError("The conversation is closed.")
            self._jobs.append(job)
            self._pending += job.nbytes
            self._changed.notify_all()

    def _has_room(self, job: _Job) -> bool:
        return not job.nbytes or not self._pending or self._pending + job.nbytes <= self._max_pending

    def _work(self, opener: Callable[[], SlotFile]) -> None:
        try:
            self._slot_file = opener()
        except Exception as error:
            self._refuse_all(error)
            return
        while batch := self._next_batch():
            if batch[0].future is not None:
                _answer(batch[0].run, self._slot_file, batch[0].future)
            elif self._failure is None:
                self._write(self._slot_file, batch)
            self._forget(batch)
        try:
            self._slot_file.close()
        except DormouseError as error:
            self._on_error(error)

    def _refuse_all(self, error: Exception) -> None:
        while batch := self._next_batch():
            for job in batch:
                if job.future is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(error)
            self._forget(batch)

    def _forget(self, batch: list[_Job]) -> None:
        with self._changed:
            self._pending -= sum(job.nbytes for job in batch)
            self._changed.notify_all()

    def _next_batch(self) -> list[_Job]:
        """Wait for jobs; return one call, or posted writes for one transaction, or nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            batch: list[_Job] = []
            nbytes = 0
            while self._jobs:
                job = self._jobs[0]
                nbytes += job.nbytes
                if batch and (job.future is not None or nbytes > _BATCH_BYTES):
                    break
                batch.append(self._jobs.popleft())
                if job.future is not None:
                    break
            return batch

    def _write(self, slot_file: SlotFile, batch: list[_Job]) -> None:
        nbytes = sum(job.nbytes for job in batch)
        try:
            if slot_file.path is not None and nbytes > _LARGE:
                require_space(slot_file.path.parent, nbytes, name=slot_file.name)
            with slot_file.transaction():
                for job in batch:
                    job.run(slot_file)
        except Exception as error:
            cause = (
                str(error) if isinstance(error, DormouseError) else f"{slot_file.name} can't be written ({error!r})."
            )
            self._failure = SlotFileError(f"Your words are saved, but not what the model remembers of them: {cause}")
            self._on_error(self._failure)


def _answer(run: Callable[[SlotFile], Any], slot_file: SlotFile, future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = run(slot_file)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
