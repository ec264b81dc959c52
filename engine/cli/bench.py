"""The command `bench`: how fast a model runs here, and what saving a turn costs."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from engine.cli.terminal import StatusLine
from engine.conversation import read_transcript
from engine.errors import DormouseError
from engine.kernels import F32, Kernels, load_kernels
from engine.memory import Memory
from engine.models import Model, TokenIds
from engine.runtime import EngineSettings, Runtime
from engine.slot.archive import Archive
from engine.slot.slot import Slot
from engine.slot.slot_file import SlotFile
from engine.slot.store import Store

_N_UBATCH = 512
_SAVED_TOKENS = 100


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    kernels = load_kernels(arguments.kernels, n_threads=arguments.threads)
    started = time.perf_counter()
    runtime = Runtime.load(arguments.model, kernels, EngineSettings())
    load_s = time.perf_counter() - started
    bench = Bench(runtime, n_prompt=arguments.n_prompt, n_gen=arguments.n_gen, depth=arguments.depth)
    results = bench.measure(arguments.runs)
    report = {
        "model": str(arguments.model),
        "kernels": kernels.name,
        "threads": kernels.n_threads,
        "results": results,
        "load_s": round(load_s, 3),
        "peak_rss_mb": _peak_rss_mb(),
    }
    print(json.dumps(report) if arguments.json else _render(report, kernels))
    kernels.close()
    return 0


@dataclass(frozen=True)
class Bench:
    """Measures on random token ids: speed does not depend on what is said."""

    runtime: Runtime
    n_prompt: int
    n_gen: int
    depth: int

    def measure(self, runs: int) -> list[dict[str, object]]:
        """Return the medians of `runs` runs after a warm-up."""
        longest = self.depth + max(self.n_prompt, self.n_gen)
        if longest > self.runtime.model.config.n_ctx_train:
            raise DormouseError(
                f"{longest:,} tokens are more than the model's context of "
                f"{self.runtime.model.config.n_ctx_train:,}: lower --depth, --n-prompt or --n-gen."
            )
        status = StatusLine()
        prefill, decode = [], []
        for i in range(runs + 1):
            status.show(f"run {i} of {runs}" if i else "warming up")
            prefill.append(self._speed(self._prefill, self.n_prompt))
            decode.append(self._speed(self._decode, self.n_gen))
        status.show("saving and waking")
        saving, waking = self._sleep_and_wake()
        status.clear()
        return [
            {
                "test": "prefill",
                "n": self.n_prompt,
                "depth": self.depth,
                "ours_tps": round(median(prefill[1:]), 2),
            },
            {"test": "decode", "n": self.n_gen, "depth": self.depth, "ours_tps": round(median(decode[1:]), 2)},
            saving,
            waking,
        ]

    def _speed(self, run: Callable[[], float], n: int) -> float:
        return n / run()

    def _ids(self, n: int) -> TokenIds:
        return np.random.default_rng(n).integers(0, self.runtime.model.config.n_vocab, n).astype(np.int32)

    def _prefill(self) -> float:
        model, memory = self.runtime.model, self.runtime.model.new_memory()
        _evaluate(model, memory, self._ids(self.depth))
        started = time.perf_counter()
        hidden = _evaluate(model, memory, self._ids(self.n_prompt))
        model.logits(hidden[-1:])
        return time.perf_counter() - started

    def _decode(self) -> float:
        model, memory = self.runtime.model, self.runtime.model.new_memory()
        _evaluate(model, memory, self._ids(self.depth))
        token = np.zeros(1, np.int32)
        started = time.perf_counter()
        for _ in range(self.n_gen):
            token = model.logits(model.forward(token, memory)).argmax(axis=1).astype(np.int32)
        return time.perf_counter() - started

    def _sleep_and_wake(self) -> tuple[dict[str, object], dict[str, object]]:
        """Measure saving a turn behind `depth` tokens, and waking all of it from the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.slot"
            store = Store(lambda: SlotFile.create(path), on_error=_raise)
            store.call(SlotFile.add_message, None, "user", "A question.", created=time.time())
            slot = self._open_slot(store)
            prompt = self._ids(self.depth + _SAVED_TOKENS)
            for start in range(0, self.depth, _N_UBATCH):
                slot.evaluate(prompt[start : min(start + _N_UBATCH, self.depth)])
            if self.depth:
                slot.checkpoint(message=None, reason="message_end")
            store.flush()
            before = store.bytes_written
            slot.evaluate(prompt[self.depth :])
            saved = _stopwatch()
            slot.checkpoint(message=None, reason="message_end")
            store.flush()
            saving = {"bytes": store.bytes_written - before, "ms": saved()}
            store.close()

            since = _stopwatch()
            store = Store(lambda: SlotFile.open(path), on_error=_raise)
            store.call(read_transcript).result()
            transcript_ms = since()
            slot = self._open_slot(store)
            reuse = slot.plan(prompt)
            if not slot.wake(reuse) or reuse.n != len(prompt):
                raise DormouseError("The state that was just saved could not be read back.")
            waking = {"transcript_ms": transcript_ms, "ready_ms": since()}
            store.close()
        place = {"n": _SAVED_TOKENS, "depth": self.depth}
        return {"test": "save", **place, **saving}, {"test": "wake", "n": len(prompt), "depth": 0, **waking}

    def _open_slot(self, store: Store) -> Slot:
        identity = store.call(SlotFile.put_model, self.runtime.identity()).result()
        return Slot(self.runtime.model, Archive(store, identity.id))


def _stopwatch() -> Callable[[], float]:
    """Start; what is returned tells the milliseconds since."""
    started = time.perf_counter()
    return lambda: round(1000 * (time.perf_counter() - started), 2)


def _evaluate(model: Model, memory: Memory, token_ids: TokenIds) -> F32:
    hidden = np.empty((0, model.config.n_embd), np.float32)
    for start in range(0, len(token_ids), _N_UBATCH):
        hidden = model.forward(token_ids[start : start + _N_UBATCH], memory)
    return hidden


def _raise(error: DormouseError) -> None:
    raise error


def _peak_rss_mb() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> 20 if sys.platform == "darwin" else peak >> 10


def _render(report: dict[str, Any], kernels: Kernels) -> str:
    lines = [f"{report['model']}: {kernels.identity}, {kernels.n_threads} threads"]
    for result in report["results"]:
        figures = {
            "save": "{bytes:,} bytes in {ms} ms",
            "wake": "transcript after {transcript_ms} ms, ready after {ready_ms} ms",
        }.get(result["test"], "{ours_tps} tok/s")
        place = f"{result['n']:>5} tokens at depth {result['depth']:<6}"
        lines.append(f"{result['test']:<8} {place} {figures.format(**result)}")
    lines.append(f"loaded in {report['load_s']} s; peak memory {report['peak_rss_mb']:,} MB")
    return "\n".join(lines)
