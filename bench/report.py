"""What a comparison found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from bench.roofline import Roofline
from bench.speed import Workload


@dataclass(frozen=True)
class Result:
    """Medians in tokens per second; a ratio above 1 says that ours is faster."""

    test: Literal["prefill", "decode"]
    n: int
    depth: int
    ours_tps: float
    peer_tps: float
    ratio: float

    @classmethod
    def of(cls, workload: Workload, *, ours_s: float, peer_s: float) -> Self:
        """Return the result of a workload from the seconds that it took."""
        return cls(
            test=workload.test,
            n=workload.n,
            depth=workload.depth,
            ours_tps=round(workload.n / ours_s, 2),
            peer_tps=round(workload.n / peer_s, 2),
            ratio=round(peer_s / ours_s, 3),
        )


@dataclass(frozen=True)
class Fractions:
    """What we reach of what the machine could do; None where that is not known."""

    decode_gb_s: float | None  # weights read for generated tokens, nothing lying before them
    read_gb_s: float
    decode_fraction: float | None
    prefill_gops: float | None  # best prefill
    dot_gops: float | None  # of a loop that does nothing else
    prefill_fraction: float | None


@dataclass(frozen=True)
class Report:
    """What was measured; the names are those of `--json`."""

    model: str
    processor: str
    kernels: str
    kernels_identity: str
    threads: int
    peer: str
    runs: int
    results: list[Result]
    skipped: list[str]  # what was not measured, and why
    load_s: float
    modules_compiled: int  # while loading; none when they are in the cache
    peer_load_s: float
    file_bytes: int
    weight_bytes: int  # held in memory
    peak_rss_mb: int | None  # without the mapped file; None where the system does not tell
    peer_rss_mb: int | None  # likewise, at the end
    kl_n: int  # tokens of the text
    kl_ours: float | None
    kl_peer: float | None
    gap_ms: float | None
    limits: Fractions  # so named for those who read `--json`


def fractions(roofline: Roofline, results: Sequence[Result]) -> Fractions:
    """Return what the results reach of what the machine could do."""
    decode = [result.ours_tps for result in results if result.test == "decode" and not result.depth]
    prefill = [result.ours_tps for result in results if result.test == "prefill"]
    read = roofline.read_bytes_per_s / 1e9
    dot = None if roofline.operations_per_s is None else roofline.operations_per_s / 1e9
    decode_gb_s = max(decode) * roofline.bytes_per_token / 1e9 if decode else None
    prefill_gops = max(prefill) * roofline.operations_per_token / 1e9 if prefill else None
    return Fractions(
        decode_gb_s=_rounded(decode_gb_s, 2),
        read_gb_s=round(read, 2),
        decode_fraction=_rounded(decode_gb_s and decode_gb_s / read, 3),
        prefill_gops=_rounded(prefill_gops, 1),
        dot_gops=_rounded(dot, 1),
        prefill_fraction=_rounded(prefill_gops and dot and prefill_gops / dot, 3),
    )


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def render(r: Report) -> str:
    """Return the report as text for people."""
    f = r.limits
    lines = [
        f"{r.model}: {r.processor}, {r.threads} threads, medians of {r.runs} pairs",
        f"ours: {r.kernels_identity}",
        f"peer: {r.peer}",
        "",
        f"{'':<34}{'ours':>10}{'peer':>10}{'ratio':>8}",
        *(
            f"{f'{x.test} of {x.n:,} at depth {x.depth:,}':<34}{x.ours_tps:>10,.1f}{x.peer_tps:>10,.1f}{x.ratio:>8.2f}"
            for x in r.results
        ),
        f"{'loading, s':<34}{r.load_s:>10.2f}{r.peer_load_s:>10.2f}",
    ]
    if r.peak_rss_mb is not None and r.peer_rss_mb is not None:
        lines.append(f"{'memory without the mapped file, MB':<34}{r.peak_rss_mb:>10,}{r.peer_rss_mb:>10,}")
    if r.kl_ours is not None and r.kl_peer is not None:
        lines.append(f"{f'KL divergence over {r.kl_n:,} tokens':<34}{r.kl_ours:>10.6f}{r.kl_peer:>10.6f}")
    lines.append("")
    if r.modules_compiled:
        lines.append(f"{r.modules_compiled} modules of the kernels were compiled while loading; the next time none is")
    lines.append(
        f"weights: {r.weight_bytes / 1e6:,.1f} MB held, {r.weight_bytes / r.file_bytes:.2f} times the model file"
    )
    if f.decode_gb_s is not None:
        lines.append(
            f"decode reads {f.decode_gb_s:.2f} GB/s of weights, {f.decode_fraction:.0%} of a measured {f.read_gb_s:.2f}"
        )
    if f.prefill_gops is not None:
        most = "" if f.dot_gops is None else f", {f.prefill_fraction:.0%} of a measured {f.dot_gops:,.0f}"
        lines.append(f"prefill does {f.prefill_gops:,.0f} GOPS{most}")
    if r.gap_ms is not None:
        lines.append(f"worst gap of the window's event loop: {r.gap_ms:.0f} ms")
    return "\n".join([*lines, *(f"skipped: {what}" for what in r.skipped)])
