"""What threads run that share the tasks of one operation after the other without asking Python.

Between the operations of a forward pass lie microseconds: waking a thread through Python would cost more than most
operations do. So while there is work, the threads of the team wait in a loop of their own; when nothing has come for
a while they go to sleep, and cost nothing.

A job is a function, its arguments and a number of tasks. The *ticket* says it all in one word: the job's number, how
many tasks it has, and which comes next. A thread that moves the ticket on has drawn the tasks that it moved it by. It
can only succeed while the job has tasks left, and a job's function and arguments stay as they are until all its tasks
are done: so no lock is needed, and whoever is asleep is not missed.

Threads that draw at the same time hold each other up for as long as a small task takes. So each draws its share of
what is left: many tasks at first, single ones in the end, when it matters that all end together.
"""

from __future__ import annotations

from llvmlite import ir

from engine.kernels.compiled.ir import Function, Module, Value, Variable, i64, ptr
from engine.kernels.compiled.isa import InstructionSet

TASK = ir.FunctionType(ir.VoidType(), [ptr, i64, i64])  # of the arguments, the task's index, the thread's index

_TICKET, _FUNCTION, _ARGUMENTS, _DONE, STOP, N_THREADS, YIELD = (64 * i for i in range(7))  # one cache line each
STATE_BYTES = 64 * 7
_INDEX_BITS = 20
MAX_TASKS = (1 << _INDEX_BITS) - 1
_JOB = 1 << (2 * _INDEX_BITS)  # the ticket's upper bits count jobs, those in the middle hold the number of tasks
_YIELD_TURNS = 1 << 10  # turns of a waiting loop until the processor is left to other programs once
_IDLE_TURNS = 1 << 15  # turns of the waiting loop without a task until a thread goes to sleep: about a millisecond


def _index(ticket: Value) -> Value:
    return ticket & MAX_TASKS


def _n_tasks(ticket: Value) -> Value:
    return ticket.unsigned_shift(_INDEX_BITS) & MAX_TASKS


def _draw(f: Function, team: Value, thread: Value) -> Value:
    """Do some tasks if there are any; return their number."""
    ticket = f.load_atomic(team + _TICKET)
    drawn = f.variable(f.constant(i64, 0))
    first = _index(ticket)
    left = _n_tasks(ticket) - first
    with f.when(left > 0):
        function = f.load(ptr, team + _FUNCTION, align=8)
        arguments = f.load(ptr, team + _ARGUMENTS, align=8)
        share = left // f.load(i64, team + N_THREADS, align=8)
        n = f.select(share < 1, f.constant(i64, 1), share)
        with f.when(f.exchange(team + _TICKET, ticket, ticket + n)):
            with f.loop(first + n, first) as task:
                f.call_address(function, TASK, arguments, task, thread)
            f.add_atomic(team + _DONE, n)
            drawn.set(n)
    return drawn.get()


def _wait(f: Function, isa: InstructionSet, team: Value, idle: Variable) -> None:
    """Let a moment pass, and count it; once in a while let other programs have the processor."""
    isa.pause(f)
    idle.set(idle.get() + 1)
    leave = f.load(ptr, team + YIELD, align=8)
    with f.when((idle.get() & (_YIELD_TURNS - 1)).equals(0) & leave.is_set()):
        f.call_address(leave, ir.FunctionType(ir.VoidType(), []))


def write_run(module: Module, isa: InstructionSet) -> ir.Function:
    """Write the function that does all tasks of a job, with whatever threads of the team are awake.

    A job of more tasks than a ticket can count is the caller's alone.
    """
    f = module.function("team_run", {"team": ptr, "function": ptr, "arguments": ptr, "n_tasks": i64})
    team, n_tasks, caller = f["team"], f["n_tasks"], f.constant(i64, 0)
    too_many = n_tasks > MAX_TASKS  # for a ticket
    alone = f.load(i64, team + N_THREADS, align=8).equals(1) | n_tasks.equals(1) | too_many
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
        with f.either(_draw(f, f["team"], f["thread"]) > 0) as (worked, waits):
            with worked:
                idle.set(f.constant(i64, 0))
            with waits:
                _wait(f, isa, f["team"], idle)
        leave_when(f.load_atomic(f["team"] + STOP).equals(1) | (idle.get() > _IDLE_TURNS))
    return f.finish()


def write_replay(module: Module) -> ir.Function:
    """Write the function that calls one operation after the other: see `calls.Recording`."""
    f = module.function("team_replay", {"team": ptr, "calls": ptr, "n_calls": i64}, exported=True)
    with f.loop(f["n_calls"]) as i:
        call = f["calls"] + i * 16
        operation, arguments = f.load(ptr, call, align=8), f.load(ptr, call + 8, align=8)
        f.call_address(operation, ir.FunctionType(ir.VoidType(), [ptr, ptr]), f["team"], arguments)
    return f.finish()


def write_team(module: Module, isa: InstructionSet) -> None:
    """Write what a team calls: `team_work` and `team_replay`."""
    write_work(module, isa)
    write_replay(module)
