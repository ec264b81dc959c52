"""Threads that share the tasks of one operation after the other without asking Python.

Between the operations of a forward pass lie microseconds: waking a thread through Python would cost more than most
operations do. So while there is work, the threads of the team wait in a loop of their own; when nothing has come for
a while they go to sleep, and cost nothing.

A job is a function, its arguments and a number of tasks. The *ticket* says it all in one word: the job's number, how
many tasks it has, and which comes next. A thread that moves the ticket on by one has drawn that task. It can only
succeed while the job has tasks left, and a job's function and arguments stay as they are until all its tasks are
done: so no lock is needed, and whoever is asleep is not missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from threading import Semaphore, Thread, get_native_id

import numpy as np
from llvmlite import ir

from engine.kernels.compiled.ir import Function, Module, Value, Variable, i64, ptr
from engine.kernels.compiled.isa import InstructionSet

TASK = ir.FunctionType(ir.VoidType(), [ptr, i64, i64])  # of the arguments, the task's index, the thread's index

_TICKET, _FUNCTION, _ARGUMENTS, _DONE, _STOP, _N_THREADS, _YIELD = (64 * i for i in range(7))  # one cache line each
_STATE_BYTES = 64 * 7
_INDEX_BITS = 20
MAX_TASKS = (1 << _INDEX_BITS) - 1
_JOB = 1 << (2 * _INDEX_BITS)  # the ticket's upper bits count jobs, those in the middle hold the number of tasks
_NICENESS = 5
_YIELD_TURNS = 1 << 10  # turns of a waiting loop until the processor is left to other programs once
_IDLE_TURNS = 1 << 15  # turns of the waiting loop without a task until a thread goes to sleep: about a millisecond


def _index(ticket: Value) -> Value:
    return ticket & MAX_TASKS


def _n_tasks(ticket: Value) -> Value:
    return ticket.unsigned_shift(_INDEX_BITS) & MAX_TASKS


def _draw(f: Function, team: Value, thread: Value) -> Value:
    """Do one task if there is one; return 1 if there was, else 0."""
    ticket = f.load_atomic(team + _TICKET)
    drawn = f.variable(f.constant(i64, 0))
    with f.when(_index(ticket) < _n_tasks(ticket)):
        function = f.load(ptr, team + _FUNCTION, align=8)
        arguments = f.load(ptr, team + _ARGUMENTS, align=8)
        with f.when(f.exchange(team + _TICKET, ticket, ticket + 1)):
            f.call_address(function, TASK, arguments, _index(ticket), thread)
            f.add_atomic(team + _DONE, 1)
            drawn.set(f.constant(i64, 1))
    return drawn.get()


def _wait(f: Function, isa: InstructionSet, team: Value, idle: Variable) -> None:
    """Let a moment pass, and count it; once in a while let other programs have the processor."""
    isa.pause(f)
    idle.set(idle.get() + 1)
    leave = f.load(ptr, team + _YIELD, align=8)
    with f.when((idle.get() & (_YIELD_TURNS - 1)).equals(0) & leave.is_set()):
        f.call_address(leave, ir.FunctionType(ir.VoidType(), []))


def write_run(module: Module, isa: InstructionSet) -> ir.Function:
    """Write the function that does all tasks of a job, with whatever threads of the team are awake."""
    f = module.function("team_run", {"team": ptr, "function": ptr, "arguments": ptr, "n_tasks": i64})
    team, n_tasks, caller = f["team"], f["n_tasks"], f.constant(i64, 0)
    alone = f.load(i64, team + _N_THREADS, align=8).equals(1) | n_tasks.equals(1)
    with f.either(alone) as (then, otherwise):
        with then, f.loop(n_tasks) as task:
            f.call_address(f["function"], TASK, f["arguments"], task, caller)
        with otherwise:
            f.store(f["function"], team + _FUNCTION, align=8)
            f.store(f["arguments"], team + _ARGUMENTS, align=8)
            f.store_atomic(f.constant(i64, 0), team + _DONE)
            number = f.load_atomic(team + _TICKET).unsigned_shift(2 * _INDEX_BITS) + 1
            f.store_atomic((number << (2 * _INDEX_BITS)) | (n_tasks << _INDEX_BITS), team + _TICKET)
            idle = f.variable(f.constant(i64, 0))
            with f.forever() as leave_when:
                drawn = _draw(f, team, caller)
                leave_when(f.load_atomic(team + _DONE) >= n_tasks)
                with f.when(drawn.equals(0)):
                    _wait(f, isa, team, idle)
    return f.finish()


def write_work(module: Module, isa: InstructionSet) -> ir.Function:
    """Write the function in which a thread of the team does tasks until it is told to stop, or nothing comes."""
    f = module.function("team_work", {"team": ptr, "thread": i64}, exported=True)
    idle = f.variable(f.constant(i64, 0))
    with f.forever() as leave_when:
        with f.either(_draw(f, f["team"], f["thread"]).equals(1)) as (worked, waits):
            with worked:
                idle.set(f.constant(i64, 0))
            with waits:
                _wait(f, isa, f["team"], idle)
        leave_when(f.load_atomic(f["team"] + _STOP).equals(1) | (idle.get() > _IDLE_TURNS))
    return f.finish()


class SpinningTeam:
    """The threads, and the memory through which they find their tasks.

    `work` is the compiled function `team_work`. One thread at a time may give work.
    """

    def __init__(self, n_threads: int, work: Callable[[int, int], None]) -> None:
        self.n_threads = n_threads
        self._memory = np.zeros(_STATE_BYTES // 8 + 8, np.int64)
        start = -self._memory.ctypes.data % 64 // 8
        self._state = self._memory[start : start + _STATE_BYTES // 8]
        self._state[_N_THREADS // 8] = n_threads
        self._state[_YIELD // 8] = _yield_address()
        self.address = self._state.ctypes.data
        self._work = work
        self._asleep: list[Semaphore] = []
        self._threads = [
            Thread(target=self._serve, args=(index,), name=f"kernel-{index}", daemon=True)
            for index in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have all threads look for tasks, for as long as they come."""
        while self._asleep:
            self._asleep.pop().release()

    def close(self) -> None:
        """End the threads; whoever gives work does it alone from then on."""
        self._state[_STOP // 8] = 1
        self._state[_N_THREADS // 8] = self.n_threads = 1
        while any(thread.is_alive() for thread in self._threads):
            self.wake()
            for thread in self._threads:
                thread.join(0.01)
        self._threads = []

    def _serve(self, index: int) -> None:
        _give_way()
        asleep = Semaphore(0)
        while not self._state[_STOP // 8]:
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
