"""The commands about files: inspect, verify, log, fetch-starter."""

from __future__ import annotations

import argparse
import json
from datetime import datetime

from engine.cli.terminal import StatusLine, say
from engine.paths import models_folder
from engine.slot.file.inspect import inspect, render
from engine.slot.file.repair import repair
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from engine.slot.records import JSON
from engine.starter import fetch_starter


def run_inspect(arguments: argparse.Namespace) -> int:
    """Print what a slot file holds."""
    summary = inspect(arguments.file)
    print(json.dumps(summary) if arguments.json else render(summary))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong with a slot file; the status says whether anything is."""
    problems = verify(arguments.file)
    for problem in problems:
        say(f"dormouse-cli: {problem}")
    if not problems:
        print(f"{arguments.file} is whole.")
    return 1 if problems else 0


def run_repair(arguments: argparse.Namespace) -> int:
    """Bring what is sound in a damaged slot file into a fresh one, which takes its place."""
    repaired = repair(arguments.file)
    print(f"{arguments.file} is whole." if repaired is None else f"{arguments.file}: {repaired}")
    return 0


def run_log(arguments: argparse.Namespace) -> int:
    """Print what happened to the state, oldest first."""
    with SlotFile.open(arguments.file, read_only=True) as slot_file:
        entries = slot_file.log()
    for entry in entries:
        if arguments.json:
            print(json.dumps({"created": entry.created, "event": entry.event, **entry.detail}))
        else:
            details = "  ".join(f"{name} {_readable(value)}" for name, value in entry.detail.items())
            print(f"{datetime.fromtimestamp(entry.created):%Y-%m-%d %H:%M:%S}  {entry.event:<11} {details}")
    return 0


def _readable(value: JSON) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def run_fetch_starter(_: argparse.Namespace) -> int:
    """Fetch the starter model into the user's folder of models and print its path."""
    status = StatusLine()

    def progress(done: int, total: int) -> None:
        status.show(f"fetching the starter model: {done >> 20} of {total >> 20} MiB")

    path = fetch_starter(models_folder(), progress=progress)
    status.clear()
    print(path)
    return 0
