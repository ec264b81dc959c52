"""The command `bench --against`: ours and the peer's speed in the same run, and what else sets them apart.

Each runs in a process of its own that lives as long as the comparison does; they take turns, and the one that waits
does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench.divergence import Divergence, measure_divergence
from bench.footprint import own_memory
from bench.peer import Peer, PeerError
from bench.report import Report, Result, fractions, render
from bench.speed import Workload
from bench.worker import Loaded, Worker
from engine.arrays import TokenIds
from engine.cli.terminal import StatusLine
from engine.errors import DormouseError

PEERS = ("xllamacpp",)
DEPTH = 4096
_SETTLING = 0.5  # seconds until the threads of the one that has finished are asleep: OpenMP's may spin for 0.2
_GAP_N_CTX = 6144  # tokens of context that the window's benchmark fills
_GAP_TIMEOUT = 600  # seconds


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    Peer.require()
    depth = DEPTH if arguments.depth is None else arguments.depth
    report = _compare(arguments, _workloads(arguments.n_prompt, arguments.n_gen, depth))
    print(json.dumps(asdict(report)) if arguments.json else render(report))
    return 0


def _workloads(n_prompt: int, n_gen: int, depth: int) -> list[Workload]:
    """Return the workloads in such an order that a long prefill leaves in memory what the decode behind it needs."""
    short = [Workload("decode", n_gen, 0), Workload("prefill", n_prompt, 0)]
    return [*short, Workload("prefill", depth, 0), Workload("decode", n_gen, depth)] if depth else short


def _compare(arguments: argparse.Namespace, workloads: Sequence[Workload]) -> Report:
    status = StatusLine()
    _read_through(arguments.model)
    status.show("loading the model")
    n_tokens = max(workload.n_ctx for workload in workloads)
    with Worker(arguments.model, kernels=arguments.kernels, n_threads=arguments.threads, n_tokens=n_tokens) as worker:
        loaded = worker.loaded
        # the peer can't begin with nothing, and generates one token more than it evaluates
        fitting = [workload for workload in workloads if workload.n_ctx + 2 <= loaded.n_ctx_train]
        if not fitting:
            raise DormouseError(
                f"{min(workload.n_ctx for workload in workloads):,} tokens are more than the model's context of "
                f"{loaded.n_ctx_train:,}: lower --depth, --n-prompt or --n-gen."
            )
        # no checkpoints and no store of old prompts: they would cost the peer time and memory, and serve nothing here
        with Peer(
            arguments.model,
            n_ctx=max(workload.n_ctx + 2 for workload in fitting),
            n_threads=loaded.n_threads,
            n_parallel=1,
            n_ctx_checkpoints=0,
            cache_ram_mib=0,
        ) as peer:
            results = _take_turns(worker, peer, fitting, arguments.runs, status)
            peer_bytes = own_memory(peer.pid)
            status.show("measuring the machine")
            ended = worker.end()
    divergence = None if arguments.no_kl else _divergence(arguments.model, loaded, status)
    too_long = [workload for workload in workloads if workload not in fitting]
    skipped = [f"{workload}: the model's context is {loaded.n_ctx_train:,} tokens" for workload in too_long]
    gap_ms = None
    if not arguments.no_gap:
        status.show("watching the window")
        gap_ms, reason = _gap_ms(arguments.model, arguments.kernels, loaded.n_ctx_train)
        skipped += [f"gap of the event loop: {reason}"] if reason else []
    status.clear()
    return Report(
        model=arguments.name,
        processor=_processor(),
        kernels=loaded.kernels,
        kernels_identity=loaded.identity,
        threads=loaded.n_threads,
        peer=peer.build,
        runs=arguments.runs,
        results=results,
        skipped=skipped,
        load_s=round(loaded.load_s, 3),
        modules_compiled=loaded.n_compiled,
        peer_load_s=round(peer.load_s, 3),
        file_bytes=arguments.model.stat().st_size,
        weight_bytes=ended.weight_bytes,
        peak_rss_mb=None if ended.peak_bytes is None else ended.peak_bytes >> 20,
        peer_rss_mb=None if peer_bytes is None else peer_bytes >> 20,
        kl_n=divergence.n if divergence else 0,
        kl_ours=divergence.ours if divergence else None,
        kl_peer=divergence.peer if divergence else None,
        gap_ms=gap_ms,
        limits=fractions(ended.roofline, results),
    )


def _read_through(path: Path) -> None:
    """Read a file, so that whoever loads it first does not wait for the disk alone."""
    try:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    except OSError as error:
        raise DormouseError(f"The file {path} can't be read: {error.strerror}.") from error


def _take_turns(
    worker: Worker, peer: Peer, workloads: Sequence[Workload], runs: int, status: StatusLine
) -> list[Result]:
    """Return the medians of so many pairs of each workload, after one that does not count."""
    ours: dict[Workload, list[float]] = {workload: [] for workload in workloads}
    theirs: dict[Workload, list[float]] = {workload: [] for workload in workloads}
    for i in range(runs + 1):
        for workload in workloads:
            status.show(f"{workload}: " + (f"run {i} of {runs}" if i else "warming up"))
            ours[workload].append(worker.seconds(workload, watched=i == 0))
            time.sleep(_SETTLING)
            theirs[workload].append(peer_seconds(peer, worker.loaded.token_ids, workload))
            time.sleep(_SETTLING)
    return [Result.of(w, ours_s=median(ours[w][1:]), peer_s=median(theirs[w][1:])) for w in workloads]


def peer_seconds(peer: Peer, token_ids: TokenIds, workload: Workload) -> float:
    """Return how long a workload takes the peer, by its own clock.

    The first token that it generates is part of its prefill, so that n steps of a decode are those of n + 1 tokens.
    Raises PeerError if it did not do what was asked.
    """
    if workload.test == "prefill":
        prompt, n_predict = token_ids[workload.depth : workload.depth + workload.n], 1
    else:
        prompt, n_predict = token_ids[: max(workload.depth, 1)], workload.n + 1
    timings = peer.completion(
        prompt,
        n_predict=n_predict,
        cache_prompt=workload.test == "decode",
        ignore_eos=True,
        temperature=0,
        samplers=["top_k"],  # the cheapest way to the best token
        top_k=1,
    )["timings"]
    n_read = timings["cache_n"] + timings["prompt_n"]
    if (n_read, timings["predicted_n"]) != (len(prompt), n_predict):
        raise PeerError(
            f"xllamacpp read {n_read} tokens and generated {timings['predicted_n']}, "
            f"instead of {len(prompt)} and {n_predict}."
        )
    return float(timings["prompt_ms" if workload.test == "prefill" else "predicted_ms"]) / 1000


def _divergence(model: Path, loaded: Loaded, status: StatusLine) -> Divergence:
    def progress(done: int, total: int) -> None:
        status.show(f"comparing distributions: {done:,} of {total:,}")

    return measure_divergence(model, loaded.kernels, n_threads=loaded.n_threads, progress=progress)


def _gap_ms(model: Path, kernels: str | None, n_ctx_train: int) -> tuple[float | None, str | None]:
    """Return the worst gap of the window's event loop while the model loads, reads and writes; else why there is none.

    In a process of its own, as this one has no screen and needs none of the libraries that Qt asks for.
    """
    if n_ctx_train < _GAP_N_CTX:
        return None, f"the model's context is {n_ctx_train:,} tokens, less than {_GAP_N_CTX:,}"
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"} | ({"DORMOUSE_KERNELS": kernels} if kernels else {})
    command = [sys.executable, "-m", "bench.window", str(model), "--json"]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GAP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"the window's benchmark had not ended after {_GAP_TIMEOUT} s"
    if ended.returncode:
        (*_, reason) = ["no reason given", *ended.stderr.split("\n")[:-1]]
        return None, f"the window's benchmark failed: {reason.strip()}"
    return float(json.loads(ended.stdout)["gap_ms"]), None


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else "unknown"
