"""The threads that compiled operations run on; what they run is in `team`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from ctypes import c_int64, c_void_p
from threading import Semaphore, Thread, get_native_id
from typing import Any

import numpy as np

from engine.kernels.compiled.calls import Operation, Recorder, Recording
from engine.kernels.compiled.library import Library, function
from engine.kernels.compiled.team import N_THREADS, STATE_BYTES, STOP, YIELD, write_team

_NICENESS = 5


class SpinningTeam:
    """The threads, and the memory through which they find their tasks. One thread at a time may give work."""

    def __init__(self, n_threads: int, library: Library) -> None:
        self.n_threads = n_threads
        work, replay = library.link("team", write_team, ["team_work", "team_replay"])
        self._work = function(work, None, c_void_p, c_int64)
        self._replay = function(replay, None, c_void_p, c_void_p, c_int64)
        self._recorder: Recorder | None = None
        self._memory = np.zeros(STATE_BYTES // 8 + 8, np.int64)
        start = -self._memory.ctypes.data % 64 // 8
        self._state = self._memory[start : start + STATE_BYTES // 8]
        self._state[N_THREADS // 8] = n_threads
        self._state[YIELD // 8] = _yield_address()
        self.address = self._state.ctypes.data
        self._asleep: list[Semaphore] = []
        self._threads = [
            Thread(target=self._serve, args=(index,), name=f"kernel-{index}", daemon=True)
            for index in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def do(self, operation: Operation, /, **arguments: Any) -> None:
        """Call an operation with arguments for all of its parameters; errors are those of `Operation.ordered`."""
        ordered = operation.ordered(arguments)
        if self._recorder is not None:
            self._recorder.add(operation, ordered)
        self._wake()
        operation.call(self.address, *ordered)

    def replay(self, recording: Recording) -> None:
        """Call all operations of a recording."""
        self._wake()
        self._replay(self.address, recording.address, recording.n_calls)

    @contextlib.contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Have a recorder note what is called meanwhile."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None
            recorder.release()

    def close(self) -> None:
        """End the threads; whoever gives work does it alone from then on."""
        self._state[STOP // 8] = 1
        self._state[N_THREADS // 8] = self.n_threads = 1
        while any(thread.is_alive() for thread in self._threads):
            self._wake()
            for thread in self._threads:
                thread.join(0.01)
        self._threads = []

    def _wake(self) -> None:
        """Have all threads look for tasks, for as long as they come."""
        while self._asleep:
            self._asleep.pop().release()

    def _serve(self, index: int) -> None:
        _give_way()
        asleep = Semaphore(0)
        while not self._state[STOP // 8]:
            self._work(self.address, index)
            self._asleep.append(asleep)
            asleep.acquire()


def _give_way() -> None:
    """Have the system prefer other threads to this one, above all the window's, where it can be told so."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)


def _yield_address() -> int:
    """Return the address of the system's function that leaves the processor to another thread; 0 if it has none."""
    try:
        if sys.platform == "win32":
            system = ctypes.WinDLL("kernel32").SwitchToThread
        else:
            system = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(system, ctypes.c_void_p).value or 0
