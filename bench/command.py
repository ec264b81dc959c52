"""What the benchmarks add to `dormouse-cli`: the commands `bench` and `simulate-retention`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import against, alone, restore, simulate
from bench.against import DEPTH, PEERS
from bench.made import DEFAULT_TYPE, TYPES, with_model
from bench.shapes import SHAPES
from engine.cli.options import add_compute, not_negative, positive


def add_commands(commands: Any) -> None:
    """Add the commands to those of the command line; each sets `run`, as its own ones do."""
    _add_bench(commands)
    simulation = commands.add_parser(
        "simulate-retention",
        help="count what is read again in long conversations, beside llama-server's policy",
        description="Replays conversations of 1,000 to 100,000 tokens under both policies, with the same bytes.",
    )
    simulation.add_argument("--seeds", type=positive, default=3, metavar="N", help="conversations each (%(default)s)")
    simulation.add_argument("--json", action="store_true", help="print one JSON array")
    simulation.set_defaults(run=simulate.run)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure prefill, decode and saving",
        description="Medians of several runs; progress on stderr.",
    )
    add = parser.add_argument
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--model", type=Path, metavar="M.gguf", help="the model file")
    subject.add_argument(
        "--shape", choices=list(SHAPES), help="a model with random weights, as large as the one of this name"
    )
    add(
        "--type",
        choices=list(TYPES),
        help=f"measure a copy with all matrices in this type (as they are; with --shape {DEFAULT_TYPE})",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--restore", action="store_true", help="instead: how soon a long conversation answers, cold, live and asleep"
    )
    instead.add_argument(
        "--against",
        choices=PEERS,
        help="instead: speed and results beside this peer's, a long prefill and a decode behind it among them",
    )
    add("--n-prompt", type=positive, default=512, metavar="N", help="tokens of a prefill (%(default)s)")
    add("--n-gen", type=positive, default=64, metavar="N", help="tokens of a decode (%(default)s)")
    add(
        "--depth",
        type=not_negative,
        metavar="N",
        help=f"tokens in the context before (0; with --against {DEPTH}, also those of the long prefill)",
    )
    add("--runs", type=positive, default=5, metavar="N", help="runs to take the median of (%(default)s)")
    add("--no-kl", action="store_true", help="with --against: don't compare the distributions of next tokens")
    add("--no-gap", action="store_true", help="with --against: don't watch the window's event loop")
    add_compute(parser)
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Run the command `bench`."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = with_model(arguments, Path(folder))
        if arguments.restore:
            return restore.run(arguments)
        return against.run(arguments) if arguments.against else alone.run(arguments)
