"""The team of threads that share tasks without asking Python."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.kernels.compiled.calls import link_operations
from engine.kernels.compiled.ir import Function, Module, Value, i64
from engine.kernels.compiled.isa import INSTRUCTION_SETS, InstructionSet
from engine.kernels.compiled.library import Library
from engine.kernels.compiled.operation import Array, Operations, Use
from engine.kernels.compiled.spinning_team import SpinningTeam
from engine.kernels.compiled.team import MAX_TASKS
from tests.instruction_sets import COMPILED

WRITTEN = Array(Use.WRITTEN, "n_tasks", np.int64)
COUNT = {"counts": WRITTEN, "threads": WRITTEN, "n_tasks": i64, "n_turns": i64}


def write_count(module: Module, isa: InstructionSet) -> None:
    """Write an operation of two phases that count each task, and note its thread, after so many turns of a loop."""

    def n_tasks(f: Function) -> Value:
        return f["n_tasks"]

    def count(f: Function) -> None:
        with f.loop(f["n_turns"]):
            isa.pause(f)
        f.store(f.load(i64, f["counts"] + f["task"] * 8) + 1, f["counts"] + f["task"] * 8)
        f.store(f["thread"], f["threads"] + f["task"] * 8)

    def twice(f: Function) -> None:
        f.store(f.load(i64, f["counts"] + f["task"] * 8) * 2, f["counts"] + f["task"] * 8)

    Operations(module, isa).add("count", COUNT, [(n_tasks, count), (n_tasks, twice)])


class Team:
    """A team and its operation."""

    def __init__(self, n_threads: int, library: Library) -> None:
        self._library = library  # holds the code
        self.spinning = SpinningTeam(n_threads, library)
        self._count = link_operations(library, "count", write_count, {"count": COUNT})["count"]

    def run(self, n_tasks: int, *, n_turns: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each task was counted, in the first phase twice as much, and by which thread."""
        counts, threads = np.zeros(n_tasks, np.int64), np.full(n_tasks, -1)
        self.spinning.do(self._count, counts=counts, threads=threads, n_tasks=n_tasks, n_turns=n_turns)
        return counts, threads

    def asleep(self) -> bool:
        """Whether the threads of the team use no time."""
        start = time.process_time()
        time.sleep(0.05)
        return time.process_time() - start < 0.005


@pytest.fixture(name="make")
def _make(kernel_cache: Path) -> Iterator[Callable[[int], Team]]:
    isa = INSTRUCTION_SETS[COMPILED[0]]
    teams: list[Team] = []

    def make(n_threads: int) -> Team:
        library = Library(isa, cache_folder=kernel_cache, compiling=lambda name: None)
        teams.append(Team(n_threads, library))
        return teams[-1]

    yield make
    for team in teams:
        team.spinning.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
def test_every_task_is_done_once(make: Callable[[int], Team], n_threads: int) -> None:
    team = make(n_threads)
    for n_tasks in np.random.default_rng(n_threads).integers(0, 60, 500):
        counts, threads = team.run(int(n_tasks))
        assert (counts == 2).all()
        assert ((threads >= 0) & (threads < n_threads)).all()


@pytest.mark.parametrize("n_tasks", [MAX_TASKS, MAX_TASKS + 1, 2 * MAX_TASKS + 7])
def test_more_tasks_than_a_ticket_counts(make: Callable[[int], Team], n_tasks: int) -> None:
    counts, _ = make(2).run(n_tasks)
    assert (counts == 2).all()


def test_many_short_jobs(make: Callable[[int], Team]) -> None:
    team = make(2)
    for n_tasks in (1, 2, 3) * 5000:
        counts, _ = team.run(n_tasks)
        assert (counts == 2).all()


def test_more_tasks_than_a_job_is_likely_to_have(make: Callable[[int], Team]) -> None:
    counts, _ = make(2).run(1_000_000)
    assert (counts == 2).all()


@pytest.mark.parametrize("n_threads", [2, 4])
def test_all_threads_get_to_work(make: Callable[[int], Team], n_threads: int) -> None:
    team = make(n_threads)
    seen: set[int] = set()

    def everyone_worked() -> bool:
        seen.update(team.run(40, n_turns=5000)[1].tolist())
        return len(seen) == n_threads

    until(everyone_worked)
    assert seen == set(range(n_threads))


def test_idle_threads_fall_asleep_and_wake_up(make: Callable[[int], Team]) -> None:
    team = make(3)
    for _ in range(3):
        counts, _ = team.run(50)
        assert (counts == 2).all()
        until(team.asleep)
    start = time.process_time()
    time.sleep(1)
    assert time.process_time() - start < 0.01
    until(lambda: team.run(40, n_turns=5000)[1].max() > 0)


def test_teams_do_not_hinder_each_other(make: Callable[[int], Team]) -> None:
    teams = [make(2), make(3)]
    for n_tasks in range(200):
        assert all((team.run(n_tasks)[0] == 2).all() for team in teams)


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_closed_team_has_no_threads_and_works_on_alone(make: Callable[[int], Team], sleeps: bool) -> None:
    team = make(3)
    threads = list(team.spinning._threads)
    team.run(50)
    if sleeps:
        until(team.asleep)
    team.spinning.close()
    assert not any(thread.is_alive() for thread in threads)
    counts, by = team.run(50)
    assert (counts == 2).all()
    assert not by.any()
    team.spinning.close()
