"""The commands and options of `dormouse-cli`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.cli import bench, chat, files, simulate
from engine.kernels.kv_types import KV_TYPES
from engine.runtime import DEFAULT_BUDGET, DEFAULT_CHECKPOINT_INTERVAL, DEFAULT_N_CTX
from engine.sampling import SamplingParameters
from engine.version import VERSION

_DESCRIPTION = """\
Chat with local language models whose conversations sleep on disk and wake where they left off.
A conversation is one slot file: opening it again costs a disk read, never a second reading by the model."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the namespace that it gives has `run`, the function of the chosen command."""
    parser = argparse.ArgumentParser(prog="dormouse-cli", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"dormouse-cli {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_chat(commands)
    _add_bench(commands)

    inspect = commands.add_parser("inspect", help="show what a slot file holds; needs no model")
    inspect.add_argument("file", type=Path, metavar="F", help="the slot file")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    inspect.set_defaults(run=files.run_inspect)

    verify = commands.add_parser("verify", help="check every checksum of a slot file; status 1 if one is wrong")
    verify.add_argument("file", type=Path, metavar="F", help="the slot file")
    verify.set_defaults(run=files.run_verify)

    repair = commands.add_parser("repair", help="bring what is sound in a damaged slot file into a fresh one")
    repair.add_argument(
        "file", type=Path, metavar="F", help="the slot file; as it is now, it is kept beside the new one"
    )
    repair.set_defaults(run=files.run_repair)

    log = commands.add_parser("log", help="show what happened to the state in a slot file; needs no model")
    log.add_argument("file", type=Path, metavar="F", help="the slot file")
    log.add_argument("--json", action="store_true", help="print one JSON object per entry, each in a line")
    log.set_defaults(run=files.run_log)

    simulation = commands.add_parser(
        "simulate-retention",
        help="count what is read again in long conversations, beside llama-server's policy",
        description="Replays conversations of 1,000 to 100,000 tokens under both policies, with the same bytes.",
    )
    simulation.add_argument("--seeds", type=_positive, default=3, metavar="N", help="conversations each (%(default)s)")
    simulation.add_argument("--json", action="store_true", help="print one JSON array")
    simulation.set_defaults(run=simulate.run)

    starter = commands.add_parser("fetch-starter", help="fetch the starter model and print where it is")
    starter.set_defaults(run=files.run_fetch_starter)
    return parser


class _AppendFile(argparse.Action):
    """Append the text of a file to the list of prompts."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        prompts = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*prompts, Path(str(values))])


def _add_chat(commands: Any) -> None:
    chat_parser = commands.add_parser(
        "chat",
        help="chat with a model; go on with a slot file",
        description="Each --prompt is one user turn. Without any, and nothing else to do, the chat is interactive.",
    )
    add = chat_parser.add_argument
    add("--model", type=Path, required=True, metavar="M.gguf", help="the model file")
    place = chat_parser.add_mutually_exclusive_group()
    place.add_argument(
        "--slot", type=Path, metavar="F.slot", help="go on with this slot file; create it if it does not exist"
    )
    add(
        "--library",
        type=Path,
        metavar="DIR",
        help="take beginnings that conversations share from the slot files in this folder (the user's library)",
    )
    place.add_argument("--temporary", action="store_true", help="never write to disk (as without --slot)")
    add("--system", metavar="T", help="the system message of a new conversation")
    add("--prompt", action="append", dest="prompts", metavar="T", help="a user turn; may be given several times")
    add("--prompt-file", action=_AppendFile, dest="prompts", metavar="F", help="a user turn out of a text file")
    start = chat_parser.add_mutually_exclusive_group()
    start.add_argument("--regenerate", action="store_true", help="first answer the last message again, as a version")
    start.add_argument(
        "--edit",
        type=_positive,
        metavar="N",
        help="replace the N-th user message (1 = first) by the first --prompt",
    )
    start.add_argument("--select", type=int, metavar="ID", help="first go to the branch of the message with this id")
    add("--max-tokens", type=_positive, metavar="N", help="end a reply after N tokens")
    _add_sampling(chat_parser)
    _add_engine(chat_parser)
    add("--json", action="store_true", help="print one JSON object per turn, each in a line")
    chat_parser.set_defaults(run=chat.run)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    defaults = SamplingParameters()
    add = parser.add_argument
    add(
        "--temperature",
        type=float,
        default=defaults.temperature,
        metavar="T",
        help="0 takes the best (%(default)s)",
    )
    add(
        "--top-k",
        type=int,
        default=defaults.top_k,
        metavar="K",
        help="choose among the K best, 0 = all (%(default)s)",
    )
    add("--top-p", type=float, default=defaults.top_p, metavar="P", help="the best that make up P (%(default)s)")
    add("--seed", type=int, metavar="S", help="draw the same again for the same S (random)")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--n-ctx", type=_positive, metavar="N", help=f"tokens of context (the model's, at most {DEFAULT_N_CTX})")
    add("--n-ubatch", type=_positive, default=512, metavar="N", help="tokens evaluated at once (%(default)s)")
    add("--kv-type", choices=list(KV_TYPES), default="f16", help="type of the K/V rows (%(default)s)")
    add(
        "--checkpoint-interval",
        type=_positive,
        default=DEFAULT_CHECKPOINT_INTERVAL,
        metavar="N",
        help="tokens between context checkpoints within a long message, at least (%(default)s)",
    )
    add(
        "--memory-budget",
        type=_not_negative,
        default=DEFAULT_BUDGET >> 20,
        metavar="MIB",
        help="MiB of memory for conversations beside the one in use; the others sleep in their files (%(default)s)",
    )
    add(
        "--disk-budget",
        type=_not_negative,
        default=DEFAULT_BUDGET >> 20,
        metavar="MIB",
        help="MiB of state in a slot file; what is likely to be missed least is dropped (%(default)s)",
    )
    _add_compute(parser)


def _add_compute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads that compute (all cores)")
    parser.add_argument("--kernels", metavar="NAME", help="which kernels compute (the fastest that run here)")


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
        "--shape", choices=list(bench.SHAPES), help="a model with random weights, as large as the one of this name"
    )
    add(
        "--type",
        choices=list(bench.TYPES),
        help=f"measure a copy with all matrices in this type (as they are; with --shape {bench.DEFAULT_TYPE})",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--restore", action="store_true", help="instead: how soon a long conversation answers, cold, live and asleep"
    )
    instead.add_argument(
        "--against",
        choices=bench.PEERS,
        help="instead: speed and results beside this peer's, a long prefill and a decode behind it among them",
    )
    add("--n-prompt", type=_positive, default=512, metavar="N", help="tokens of a prefill (%(default)s)")
    add("--n-gen", type=_positive, default=64, metavar="N", help="tokens of a decode (%(default)s)")
    add(
        "--depth",
        type=_not_negative,
        metavar="N",
        help=f"tokens in the context before (0; with --against {bench.DEPTH}, also those of the long prefill)",
    )
    add("--runs", type=_positive, default=5, metavar="N", help="runs to take the median of (%(default)s)")
    add("--no-kl", action="store_true", help="with --against: don't compare the distributions of next tokens")
    add("--no-gap", action="store_true", help="with --against: don't watch the window's event loop")
    _add_compute(parser)
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=bench.run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value
