"""The command `bench --restore`: how soon a long conversation answers when it is cold, live, and asleep in its file."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from engine import paths
from engine.arrays import TokenIds
from engine.cli.terminal import StatusLine
from engine.errors import DormouseError
from engine.generate import Limits, MessageEnd, Prompt, prefill
from engine.kernels import load_kernels
from engine.runtime import EngineSettings, Runtime
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.slot import Slot

_N_TOKENS = 6144  # unless --depth says something else
_N_MESSAGE = 512  # tokens of each message of the conversation
_N_NEXT = 32  # tokens of the message that it goes on with


@dataclass(frozen=True)
class Answer:
    """Milliseconds from a message to the first token of its reply, and the tokens that were evaluated for it."""

    ms: float
    n: int


@dataclass(frozen=True)
class Life:
    """What a process measured."""

    load_ms: float  # of the model, ready to compute
    answers: list[Answer]
    state_bytes: int  # what a restore reads


@dataclass(frozen=True)
class RestoreReport:
    """Medians; the names are those of `--json`."""

    model: str
    n_tokens: int
    cold_ms: float
    live_ms: float
    restored_ms: float
    cold_n: int
    live_n: int
    restored_n: int
    state_bytes: int
    file_bytes: int
    load_ms: float


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    with tempfile.TemporaryDirectory() as folder:
        report = _measure(arguments, Path(folder) / "bench.slot")
    print(json.dumps(asdict(report)) if arguments.json else _render(report))
    return 0


def _measure(arguments: argparse.Namespace, path: Path) -> RestoreReport:
    status = StatusLine()
    sleeper = Sleeper(arguments.model, arguments.kernels, arguments.threads, path, arguments.depth or _N_TOKENS)
    status.show(f"reading {sleeper.n_tokens:,} tokens")
    cold, *live = _in_a_new_process(sleeper, arguments.runs).answers
    file_bytes = path.stat().st_size
    restored = []
    for i in range(arguments.runs):
        status.show(f"waking up, {i + 1} of {arguments.runs}")
        restored.append(_in_a_new_process(sleeper, 0))
    status.clear()
    return RestoreReport(
        model=arguments.name,
        n_tokens=sleeper.n_tokens,
        cold_ms=round(cold.ms, 2),
        live_ms=round(median(answer.ms for answer in live), 2),
        restored_ms=round(median(life.answers[0].ms for life in restored), 2),
        cold_n=cold.n,
        live_n=max(answer.n for answer in live),
        restored_n=max(life.answers[0].n for life in restored),
        state_bytes=restored[-1].state_bytes,
        file_bytes=file_bytes,
        load_ms=round(median(life.load_ms for life in restored), 2),
    )


def _in_a_new_process(sleeper: Sleeper, n_live: int) -> Life:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(sleeper.live, n_live).result()


@dataclass(frozen=True)
class Sleeper:
    """A conversation of `n_tokens` in the file `path`, lived in several processes."""

    model: Path
    kernels: str | None
    n_threads: int | None
    path: Path
    n_tokens: int

    def live(self, n_live: int) -> Life:
        """Load the model; answer the conversation where there is no file yet, one message more where there is one.

        Then answer `n_live` messages, one after the other.
        """
        started = time.perf_counter()
        kernels = load_kernels(self.kernels, n_threads=self.n_threads, cache_folder=paths.kernels_folder())
        runtime = Runtime.load(self.model, kernels, EngineSettings())
        if runtime.model.config.n_ctx_train < self.n_tokens + (n_live + 1) * _N_NEXT:
            raise DormouseError(f"The model's context is too short for a conversation of {self.n_tokens:,} tokens.")
        memory = runtime.model.new_memory()
        runtime.model.logits(runtime.model.forward(_ids(_N_NEXT), memory)[-1:])  # what is loaded on first use
        load_ms = 1000 * (time.perf_counter() - started)

        is_new = not self.path.exists()
        ids = _ids(self.n_tokens) if is_new else np.concatenate([_ids(self.n_tokens), _ids(_N_NEXT, seed=-1)])
        since = time.perf_counter()
        store = Store(lambda: (SlotFile.create if is_new else SlotFile.open)(self.path), on_error=_raise)
        slot = Slot(runtime.model, Archive(store, store.call(SlotFile.put_model, runtime.identity()).result().id))
        answers = [_answer(runtime, slot, ids, since)]
        state_bytes = slot.state_nbytes
        for seed in range(n_live):
            store.flush()
            ids = np.concatenate([ids, _ids(_N_NEXT, seed=seed + 1)])
            answers.append(_answer(runtime, slot, ids, time.perf_counter()))
        store.close()
        kernels.close()
        return Life(load_ms, answers, state_bytes)


def _answer(runtime: Runtime, slot: Slot, ids: TokenIds, since: float) -> Answer:
    n_messages = len(ids) // _N_MESSAGE
    ends = [MessageEnd(_N_MESSAGE * (i + 1), i, "message_end") for i in range(n_messages)]
    prompt = Prompt(ids, (*ends, MessageEnd(len(ids), n_messages, "prompt_end")))
    reused, *_ = prefill(slot, prompt, limits=Limits(runtime.n_ctx), check=lambda: None)
    assert slot.hidden is not None
    runtime.model.logits(slot.hidden).argmax()
    return Answer(1000 * (time.perf_counter() - since), len(ids) - reused.n)


def _ids(n: int, *, seed: int = 0) -> TokenIds:
    """Return random ids: speed does not depend on what is said."""
    return np.random.default_rng(seed + 1).integers(1, 256, n).astype(np.int32)


def _raise(error: DormouseError) -> None:
    raise error


def _render(report: RestoreReport) -> str:
    r = report
    return "\n".join(
        [
            f"{r.model}: a conversation of {r.n_tokens:,} tokens, {_N_NEXT} tokens more",
            f"cold      first token after {r.cold_ms:>10,.1f} ms, {r.cold_n:>5,} tokens evaluated",
            f"live      first token after {r.live_ms:>10,.1f} ms, {r.live_n:>5,} tokens evaluated",
            f"restored  first token after {r.restored_ms:>10,.1f} ms, {r.restored_n:>5,} tokens evaluated",
            f"restored is {r.cold_ms / r.restored_ms:,.0f} times faster than cold, and "
            f"{r.restored_ms - r.live_ms:,.1f} ms slower than live, for {r.state_bytes / 1e6:,.1f} MB of state",
            f"file of {r.file_bytes / 1e6:,.1f} MB; model loaded in {r.load_ms:,.0f} ms",
        ]
    )
