"""Our side of a comparison: a model in a process of its own, commanded over a pipe."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from bench.footprint import PeakMemory, weights_held
from bench.roofline import Roofline, measure_roofline
from bench.speed import Speed, Workload, random_ids
from engine import paths
from engine.arrays import TokenIds
from engine.errors import DormouseError
from engine.kernels import load_kernels
from engine.runtime import EngineSettings, Runtime


@dataclass(frozen=True)
class Loaded:
    """What the process says first."""

    kernels: str
    identity: str
    n_threads: int
    n_ctx_train: int
    token_ids: TokenIds  # that all workloads read
    load_s: float
    n_compiled: int  # modules of the kernels that were not in the cache, and made loading slower


@dataclass(frozen=True)
class Ended:
    """What the process says last."""

    peak_bytes: int | None  # of memory of its own, the mapped file not among them
    weight_bytes: int
    roofline: Roofline


@dataclass(frozen=True)
class _Start:
    model: Path
    kernels: str | None
    n_threads: int | None
    n_tokens: int


@dataclass(frozen=True)
class _Run:
    workload: Workload
    watched: bool


class Worker:
    """Run a model in a process of its own for the length of a `with` block.

    Attributes:
        loaded: what it said when it was ready.
    """

    loaded: Loaded

    def __init__(self, model: Path, *, kernels: str | None, n_threads: int | None, n_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        start = _Start(model, kernels, n_threads, n_tokens)
        self._process = context.Process(target=_serve, args=(theirs, start), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        try:
            self.loaded = self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def seconds(self, workload: Workload, *, watched: bool = False) -> float:
        """Return how long a workload takes; when its memory is watched, that may be longer."""
        seconds: float = self._ask(_Run(workload, watched))
        return seconds

    def end(self) -> Ended:
        """Return what there is to say when all workloads have been done."""
        ended: Ended = self._ask(None)
        return ended

    def _ask(self, command: _Run | None) -> Any:
        with _ending_told():
            self._connection.send(command)
        return self._answer()

    def _answer(self) -> Any:
        with _ending_told():
            answer = self._connection.recv()
        if isinstance(answer, DormouseError):
            raise answer
        return answer


@contextmanager
def _ending_told() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise DormouseError("The process that ran the model ended before it was done.") from error


def _serve(connection: Connection, start: _Start) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    try:
        _work(connection, start)
    except DormouseError as error:
        connection.send(error)


def _work(connection: Connection, start: _Start) -> None:
    memory, compiled = PeakMemory(), list[str]()
    kernels = load_kernels(
        start.kernels,
        n_threads=start.n_threads,
        cache_folder=paths.kernels_folder(),
        compiling=compiled.append,
    )
    with memory:
        started = time.perf_counter()
        runtime = Runtime.load(start.model, kernels, EngineSettings())
        load_s = time.perf_counter() - started
    model = runtime.model
    token_ids = random_ids(runtime.tokenizer.vocabulary, start.n_tokens)
    connection.send(
        Loaded(
            kernels=kernels.name,
            identity=kernels.identity,
            n_threads=kernels.n_threads,
            n_ctx_train=model.config.n_ctx_train,
            token_ids=token_ids,
            load_s=load_s,
            n_compiled=len(compiled),
        )
    )
    speed = Speed(model, token_ids)
    while (command := connection.recv()) is not None:
        with memory if command.watched else nullcontext():
            connection.send(speed.seconds(command.workload))
    roofline = measure_roofline(model, token_ids)
    connection.send(Ended(memory.nbytes, weights_held(), roofline))
    kernels.close()
