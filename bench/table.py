"""Measure several models beside llama.cpp, and print the results as Markdown.

    python -m bench.table [--runs N] [--quick]

`packaging/dev.py bench` runs this in the virtual environment. The models are those of the tests, also in other tensor
types, and random weights in the shapes of published models.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bench.shapes import SHAPES
from engine.errors import DormouseError
from engine.starter import fetch_model, read_entry, starter_entry

MODELS_FOLDER = Path(os.environ.get("DORMOUSE_TEST_MODELS") or user_cache_path("dormouse") / "test-models")
TYPES = ("q8_0", "q4_0")
SPEEDS = {
    "prefill 512": ("prefill", 512, 0),
    "prefill 4,096": ("prefill", 4096, 0),
    "decode at 0": ("decode", 64, 0),
    "decode at 4,096": ("decode", 64, 4096),
}
"""Columns of the table, and the test, number of tokens and depth of the results in them."""
SIZES = ("--n-prompt", "512", "--n-gen", "64", "--depth", "4096")

Report = Mapping[str, Any]
"""What `dormouse-cli bench --against xllamacpp --json` prints."""


def benchmarks() -> dict[str, list[str]]:
    """Fetch the models; return the options that choose what is measured, by names for people.

    Raises DormouseError if a model can't be fetched.
    """
    chosen = {}
    for entry, types in ((starter_entry(), TYPES), (read_entry(resources.files("resources") / "gemma3.json"), ())):
        say(f"fetching {entry.name}, unless it is there")
        model = ["--model", str(fetch_model(entry, MODELS_FOLDER))]
        chosen[entry.name] = model
        chosen |= {f"{entry.name} as {name}": [*model, "--type", name] for name in types}
    for shape in SHAPES:
        # these are larger: the peer takes minutes to read 4,096 tokens
        chosen |= {f"{shape}, random, {name}": ["--shape", shape, "--type", name, "--depth", "0"] for name in TYPES}
    return chosen


def measure(options: Sequence[str]) -> Report | None:
    """Run one benchmark in a process of its own; None if it fails, the reason of which it has told on stderr."""
    command = [sys.executable, "-m", "engine.cli", "bench", "--against", "xllamacpp", "--json", *SIZES, *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return None if ended.returncode else json.loads(ended.stdout)


def render(reports: Mapping[str, Report]) -> str:
    """Return the speeds as a table, and below it what belongs to them."""
    first = next(iter(reports.values()))
    return "\n".join(
        [
            *_table(["model", *SPEEDS], reports, _speeds),
            "",
            "Tokens per second, in brackets the ratio to llama.cpp's in the same run; above 1, ours is faster.",
            "",
            f"- kernels: {first['kernels_identity']}",
            f"- machine: {first['processor']}; {first['threads']} threads",
            f"- peer: {first['peer']}",
            f"- medians of {first['runs']} pairs",
            "",
            *_table(["model", *DETAILS], reports, lambda report: [cell(report) for cell in DETAILS.values()]),
        ]
    )


def _table(
    titles: Sequence[str], reports: Mapping[str, Report], cells: Callable[[Report], Sequence[str]]
) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(titles) - 1)}"
    for name, report in reports.items():
        yield f"| {' | '.join([name, *cells(report)])} |"


def _speeds(report: Report) -> list[str]:
    cells = {
        (result["test"], result["n"], result["depth"]): f"{result['ours_tps']:,.1f} ({result['ratio']:.2f})"
        for result in report["results"]
    }
    return [cells.get(place, "–") for place in SPEEDS.values()]


def _both(form: str, ours: float | None, peer: float | None) -> str:
    return " / ".join(_one(form, value) for value in (ours, peer))


def _one(form: str, value: float | None) -> str:
    return "–" if value is None else format(value, form)


DETAILS: Mapping[str, Callable[[Report], str]] = {
    "KL, ours / peer": lambda report: _both(".6f", report["kl_ours"], report["kl_peer"]),
    "load in s, ours / peer": lambda report: _both(".2f", report["load_s"], report["peer_load_s"]),
    "weights in memory / file": lambda report: f"{report['weight_bytes'] / report['file_bytes']:.2f}",
    "gap in ms": lambda report: _one(".0f", report["gap_ms"]),
    "decode / reading speed": lambda report: _one(".0%", report["limits"]["decode_fraction"]),
    "prefill / product speed": lambda report: _one(".0%", report["limits"]["prefill_fraction"]),
}
"""Columns of the second table, and what is in them."""


def say(text: str) -> None:
    """Tell what comes next, on stderr: stdout belongs to the table."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all, whatever of it fails; return 1 if something did."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="pairs to take the median of (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="leave out distributions and the window's event loop")
    arguments = parser.parse_args(argv)
    passed_on = ["--runs", str(arguments.runs), *(["--no-kl", "--no-gap"] if arguments.quick else [])]
    try:
        chosen = benchmarks()
    except DormouseError as error:
        say(str(error))
        return 1
    reports, failed = {}, []
    for name, options in chosen.items():
        say(name)
        report = measure([*options, *passed_on])
        if report is None:
            failed.append(name)
        else:
            reports[name] = report
    if reports:
        print(render(reports))
    if failed:
        say(f"this could not be measured: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
