"""The command `bench`: how fast a model runs, alone or against llama.cpp, and what sleeping costs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from engine.cli.bench import against, alone, restore
from engine.cli.bench.against import DEPTH, PEERS
from engine.cli.bench.made import DEFAULT_TYPE, TYPES, with_model
from engine.cli.bench.shapes import SHAPES

__all__ = ["DEFAULT_TYPE", "DEPTH", "PEERS", "SHAPES", "TYPES", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = with_model(arguments, Path(folder))
        if arguments.restore:
            return restore.run(arguments)
        return against.run(arguments) if arguments.against else alone.run(arguments)
