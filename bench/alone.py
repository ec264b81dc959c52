"""The command `bench`: how fast a model runs here, and what saving a turn costs."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from statistics import median
from typing import Any

from bench.sleep import sleep_and_wake
from bench.speed import Speed, Workload, random_ids
from engine import paths
from engine.cli.terminal import StatusLine
from engine.errors import DormouseError
from engine.kernels import Kernels, load_kernels
from engine.runtime import EngineSettings, Runtime


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    kernels = load_kernels(arguments.kernels, n_threads=arguments.threads, cache_folder=paths.kernels_folder())
    started = time.perf_counter()
    runtime = Runtime.load(arguments.model, kernels, EngineSettings())
    load_s = time.perf_counter() - started
    depth = arguments.depth or 0
    workloads = (Workload("prefill", arguments.n_prompt, depth), Workload("decode", arguments.n_gen, depth))
    report = {
        "model": arguments.name,
        "kernels": kernels.name,
        "threads": kernels.n_threads,
        "results": _measure(runtime, workloads, arguments.runs),
        "load_s": round(load_s, 3),
        "peak_rss_mb": _peak_rss_mb(),
    }
    print(json.dumps(report) if arguments.json else _render(report, kernels))
    kernels.close()
    return 0


def _measure(runtime: Runtime, workloads: tuple[Workload, ...], runs: int) -> list[dict[str, object]]:
    """Return the medians of `runs` runs after a warm-up, and what sleep costs behind as many tokens."""
    longest = max(workload.n_ctx for workload in workloads)
    if longest > runtime.model.config.n_ctx_train:
        raise DormouseError(
            f"{longest:,} tokens are more than the model's context of {runtime.model.config.n_ctx_train:,}: "
            "lower --depth, --n-prompt or --n-gen."
        )
    status = StatusLine()
    speed = Speed(runtime.model, random_ids(runtime.tokenizer.vocabulary, longest))
    seconds: dict[Workload, list[float]] = {workload: [] for workload in workloads}
    for i in range(runs + 1):
        status.show(f"run {i} of {runs}" if i else "warming up")
        for workload in workloads:
            seconds[workload].append(speed.seconds(workload))
    status.show("saving and waking")
    saving, waking = sleep_and_wake(runtime, workloads[0].depth)
    status.clear()
    speeds: list[dict[str, object]] = [
        {
            "test": workload.test,
            "n": workload.n,
            "depth": workload.depth,
            "ours_tps": round(workload.n / median(seconds[workload][1:]), 2),
        }
        for workload in workloads
    ]
    return [*speeds, saving, waking]


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
