"""`dormouse-cli`, the headless twin of the application."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.cli.parser import build_parser
from engine.errors import DormouseError

__all__ = ["main"]

_INTERRUPTED = 130  # as a shell reports it


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0, 1 for a failure told on stderr, 2 for wrong usage."""
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as exit:  # argparse has told why; --help and --version end here too
        return int(exit.code or 0)
    try:
        return int(arguments.run(arguments))
    except DormouseError as error:
        print(f"dormouse-cli: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
