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
        status.show("saving a turn")
        nbytes, seconds = self._save()
        status.clear()
        return [
            {
                "test": "prefill",
                "n": self.n_prompt,
                "depth": self.depth,
                "ours_tps": round(median(prefill[1:]), 2),
            },
            {"test": "decode", "n": self.n_gen, "depth": self.depth, "ours_tps": round(median(decode[1:]), 2)},
            {
                "test": "save",
                "n": _SAVED_TOKENS,
                "depth": self.depth,
                "bytes": nbytes,
                "ms": round(1000 * seconds, 2),
            },
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

    def _save(self) -> tuple[int, float]:
        """Return the bytes that saving a turn writes behind `depth` tokens, and the seconds until they are on disk."""
        with tempfile.TemporaryDirectory() as folder:
            store = Store(lambda: SlotFile.create(Path(folder) / "bench.slot"), on_error=_raise)
            identity = store.call(SlotFile.put_model, self.runtime.identity()).result()
            slot = Slot(self.runtime.model, Archive(store, identity.id))
            for start in range(0, self.depth, _N_UBATCH):
                slot.evaluate(self._ids(self.depth)[start : start + _N_UBATCH])
            if self.depth:
                slot.checkpoint(message=None, reason="message_end")
            store.flush()
            before = store.bytes_written
            slot.evaluate(self._ids(_SAVED_TOKENS))
            started = time.perf_counter()
            slot.checkpoint(message=None, reason="message_end")
            store.flush()
            seconds = time.perf_counter() - started
            written = store.bytes_written - before
            store.close()
        return written, seconds


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
        place = f"{result['n']:>5} tokens at depth {result['depth']:<6}"
        if result["test"] == "save":
            lines.append(f"save    {place} {result['bytes']:>12,} bytes in {result['ms']} ms")
        else:
            lines.append(f"{result['test']:<7} {place} {result['ours_tps']:>10} tok/s")
    lines.append(f"loaded in {report['load_s']} s; peak memory {report['peak_rss_mb']:,} MB")
    return "\n".join(lines)
