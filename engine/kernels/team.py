"""A team of threads that share one piece of work at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Semaphore, Thread

ENVIRONMENT_VARIABLE = "DORMOUSE_THREADS"


def default_threads() -> int:
    """Return the number that DORMOUSE_THREADS says, else that of the cores that this process may run on."""
    if (wanted := os.environ.get(ENVIRONMENT_VARIABLE, "")).isdecimal():
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(slots=True)
class _Work:
    task: Callable[[int], None]
    indices: Iterator[int]  # drawn from by all threads; `next` of a range iterator is atomic under the GIL
    done: Semaphore = field(default_factory=lambda: Semaphore(0))
    error: BaseException | None = None

    def share(self) -> None:
        try:
            for index in self.indices:
                self.task(index)
        except BaseException as error:  # raised again in the calling thread
            self.error = error


class ThreadTeam:
    """Run independent tasks on `n_threads` threads, the caller's among them.

    Idle threads sleep in a queue and cost nothing. How the work is cut into tasks is the caller's decision and
    must not depend on `n_threads`: that is what makes results equal bit by bit for any number of threads.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = max(1, n_threads or default_threads())
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, name=f"kernel-{i}", daemon=True) for i in range(1, self.n_threads)]
        for thread in self._threads:
            thread.start()

    def run(self, n_tasks: int, task: Callable[[int], None]) -> None:
        """Call `task(i)` for each i below `n_tasks`; return when all have ended."""
        helpers = min(n_tasks, self.n_threads) - 1
        if helpers < 1:
            for index in range(n_tasks):
                task(index)
            return
        work = _Work(task, iter(range(n_tasks)))
        for _ in range(helpers):
            self._queue.put(work)
        work.share()
        for _ in range(helpers):
            work.done.acquire()
        error, work.error = work.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # which knows this frame, and so itself

    def close(self) -> None:
        """End the threads; the team runs tasks in the caller's thread from then on."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads, self.n_threads = [], 1

    def _serve(self) -> None:
        while self._serve_once():
            pass

    def _serve_once(self) -> bool:
        """Do the next piece of work, which nobody holds on to then; False at the end."""
        work = self._queue.get()
        if work is not None:
            work.share()
            work.done.release()
        return work is not None
