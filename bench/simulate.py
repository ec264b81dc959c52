"""The command `simulate-retention`: what is read again in long conversations, beside llama-server's policy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from bench.llama_server_slot import ServerSettings
from bench.simulation import MEMORIES, Action, Comparison, SimulatedMemory, compare
from engine.cli.terminal import StatusLine

LENGTHS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
SERVER_OPTIONS = ((32, 8192), (64, 1024))  # --ctx-checkpoints and --checkpoint-min-step
_N_ACTIONS = 20


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    status = StatusLine()
    comparisons = []
    for memory in MEMORIES:
        for options in SERVER_OPTIONS:
            for comparison in series(memory, *options, seeds=arguments.seeds):
                status.show(f"{memory.name}: {comparison.n_tokens:,} tokens")
                comparisons.append(comparison)
    status.clear()
    print(json.dumps([asdict(c) for c in comparisons]) if arguments.json else _render(comparisons))
    return 0


def series(
    memory: SimulatedMemory, n_ctx_checkpoints: int, checkpoint_min_step: int, *, seeds: int
) -> Iterator[Comparison]:
    """Yield a comparison for each length of conversation."""
    settings = ServerSettings(n_ctx_checkpoints, checkpoint_min_step, memory.n_swa)
    for n_tokens in LENGTHS:
        yield compare(memory, settings, n_tokens=n_tokens, seeds=seeds, n_actions=_N_ACTIONS)


def _render(comparisons: list[Comparison]) -> str:
    actions: list[Action] = ["regenerate", "edit", "branch_back"]
    title = "".join(f"{action.replace('_', ' '):>22}" for action in actions)
    lines = ["Tokens read again, on average: ours / llama-server's with the same bytes"]
    for c in comparisons:
        if c.n_tokens == LENGTHS[0]:
            kept = f"{c.memory}, {c.n_ctx_checkpoints} checkpoints, step {c.checkpoint_min_step:,}"
            lines += ["", f"{kept:<50}{title}"]
        counts = (f"{c.ours.get(action, 0):,.0f} / {c.theirs.get(action, 0):,.0f}" for action in actions)
        lines.append(f"{c.n_tokens:>10,} tokens{'':<33}" + "".join(f"{count:>22}" for count in counts))
    return "\n".join(lines)
