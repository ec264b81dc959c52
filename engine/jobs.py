"""Jobs: what is asked of the session, and the queue in which they wait for the engine's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from threading import Event as Flag

from engine.generate import Cancelled


@dataclass(frozen=True)
class Job:
    """Something asked of the session; its events carry its id."""

    id: int
    conversation: int | None
    _on_cancel: Callable[[Job], object] = field(default=lambda _job: None, repr=False, compare=False)
    _cancelled: Flag = field(default_factory=Flag, repr=False, compare=False)

    def cancel(self) -> None:
        """Ask the job to end soon; what it did so far stays. One that waits for its turn ends at once."""
        self._cancelled.set()
        self._on_cancel(self)

    def check(self) -> None:
        """Raise Cancelled if the job was cancelled."""
        if self._cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True, eq=False)
class Waiting:
    """A job that has not begun.

    `withdraw` is called in place of `run` where the job is cancelled before it begins, in the thread that cancels: it
    must return at once.
    """

    job: Job
    run: Callable[[Job], None]
    withdraw: Callable[[Job], None]
    survives: bool = False  # the end of the session: it is run all the same


class JobQueue:
    """Jobs in the order in which they were asked; each is handed out, or withdrawn, once."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._changed = Condition()
        self._ended = False

    def put(self, waiting: Waiting) -> bool:
        """Append a job; False if it is too late for that."""
        with self._changed:
            if not self._ended:
                self._waiting.append(waiting)
                self._changed.notify_all()
            return not self._ended

    def take(self) -> Waiting | None:
        """Wait for the next job and hand it out; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            return self._waiting.popleft() if self._waiting else None

    def withdraw(self, job: Job) -> Waiting | None:
        """Take a job out of the queue; None if it does not wait there."""
        with self._changed:
            found = next((waiting for waiting in self._waiting if waiting.job is job), None)
            if found is not None:
                self._waiting.remove(found)
            return found

    def end(self) -> list[Waiting]:
        """Let no more jobs in, and return those that are withdrawn by that: all but those that survive the end."""
        with self._changed:
            self._ended = True
            withdrawn = [waiting for waiting in self._waiting if not waiting.survives]
            self._waiting = deque(waiting for waiting in self._waiting if waiting.survives)
            self._changed.notify_all()
        return withdrawn
