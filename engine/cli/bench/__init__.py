"""The command `bench`: how fast a model runs, alone or against llama.cpp, and what sleeping costs."""

from __future__ import annotations

import argparse

from engine.cli.bench import against, alone, restore
from engine.cli.bench.against import DEPTH, PEERS

__all__ = ["DEPTH", "PEERS", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    if arguments.restore:
        return restore.run(arguments)
    return against.run(arguments) if arguments.against else alone.run(arguments)
