"""The command line's end of a session: asks for jobs and waits for their events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

from engine import events
from engine.errors import DormouseError
from engine.jobs import Job
from engine.session import Session


class Client:
    """A session whose events are waited for, job by job."""

    def __init__(
        self, *, kernels: str | None, n_threads: int | None, warn: Callable[[str], None], library: Path | None = None
    ) -> None:
        self._events: SimpleQueue[events.Event] = SimpleQueue()
        self._early: dict[int, list[events.Event]] = defaultdict(list)  # of jobs that are not followed yet
        self._warn = warn
        self.session = Session(self._events.put, kernels=kernels, n_threads=n_threads, library=library)

    def follow(self, job: Job) -> Iterator[events.Event]:
        """Yield the events of a job, to the last; a first Ctrl-C cancels the job instead of ending the program.

        Raises DormouseError when it fails.
        """
        for event in self._events_of(job):
            if isinstance(event, events.Failed):
                raise (RuntimeError(event.details) if event.details else DormouseError(event.text))
            yield event
            if isinstance(event, events.Outcome):
                return

    def _events_of(self, job: Job) -> Iterator[events.Event]:
        yield from self._early.pop(job.id, [])
        interrupted = False
        while True:
            try:
                event = self._events.get()
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                job.cancel()
                continue
            if isinstance(event, events.Warned):
                self._warn(event.text)
            elif event.job == job.id:
                yield event
            else:
                self._early[event.job].append(event)

    def wait(self, job: Job) -> events.Event:
        """Return the last event of a job."""
        *_, last = self.follow(job)
        return last
