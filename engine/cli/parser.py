"""The commands and options of `dormouse-cli`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from engine.cli import chat, files
from engine.cli.options import add_compute, not_negative, positive
from engine.errors import DormouseError
from engine.kernels.kv_types import KV_TYPES
from engine.runtime import DEFAULT_BUDGET, DEFAULT_CHECKPOINT_INTERVAL, DEFAULT_N_CTX
from engine.sampling import SamplingParameters
from engine.version import VERSION

_DESCRIPTION = """\
Chat with local language models whose conversations sleep on disk and wake where they left off.
A conversation is one slot file: opening it again costs a disk read, never a second reading by the model."""
_BENCHMARKS = "bench.command"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the namespace that it gives has `run`, the function of the chosen command."""
    parser = argparse.ArgumentParser(prog="dormouse-cli", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"dormouse-cli {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_chat(commands)

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

    starter = commands.add_parser("fetch-starter", help="fetch the starter model and print where it is")
    starter.set_defaults(run=files.run_fetch_starter)
    _add_benchmarks(commands)
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
        type=positive,
        metavar="N",
        help="replace the N-th user message (1 = first) by the first --prompt",
    )
    start.add_argument("--select", type=int, metavar="ID", help="first go to the branch of the message with this id")
    add("--max-tokens", type=positive, metavar="N", help="end a reply after N tokens")
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
    add("--n-ctx", type=positive, metavar="N", help=f"tokens of context (the model's, at most {DEFAULT_N_CTX})")
    add("--n-ubatch", type=positive, default=512, metavar="N", help="tokens evaluated at once (%(default)s)")
    add("--kv-type", choices=list(KV_TYPES), default="f16", help="type of the K/V rows (%(default)s)")
    add(
        "--checkpoint-interval",
        type=positive,
        default=DEFAULT_CHECKPOINT_INTERVAL,
        metavar="N",
        help="tokens between context checkpoints within a long message, at least (%(default)s)",
    )
    add(
        "--memory-budget",
        type=not_negative,
        default=DEFAULT_BUDGET >> 20,
        metavar="MIB",
        help="MiB of memory for conversations beside the one in use; the others sleep in their files (%(default)s)",
    )
    add(
        "--disk-budget",
        type=not_negative,
        default=DEFAULT_BUDGET >> 20,
        metavar="MIB",
        help="MiB of state in a slot file; what is likely to be missed least is dropped (%(default)s)",
    )
    add_compute(parser)


def _add_benchmarks(commands: Any) -> None:
    """Add the commands of the benchmarks, where they are installed.

    They stand above the engine, which is whole without them. By name, then; and not by an entry point, as those of a
    checkout are only known once it is installed.
    """
    try:
        benchmarks = import_module(_BENCHMARKS)
    except ModuleNotFoundError as error:
        if error.name not in {_BENCHMARKS, _BENCHMARKS.partition(".")[0]}:
            raise
        for name in ("bench", "simulate-retention"):
            # no prefix that anybody types: the sentence is due whatever options follow
            missing = commands.add_parser(name, help="not installed here", add_help=False, prefix_chars="\0")
            missing.add_argument("anything", nargs="*")
            missing.set_defaults(run=_refuse_benchmarks)
    else:
        benchmarks.add_commands(commands)


def _refuse_benchmarks(_: argparse.Namespace) -> NoReturn:
    raise DormouseError("The benchmarks are not installed here; a checkout of Dormouse and its wheel have them.")
