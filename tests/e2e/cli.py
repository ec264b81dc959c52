"""`dormouse-cli` in a process of its own, on the kernels that the tests run with."""

import os
import sys

from engine.cli import main


def run() -> int:
    """Run the command line; return its exit status."""
    if os.environ.get("DORMOUSE_TEST_INSTRUCTION_SET"):
        from tests.instruction_sets import stand_in  # noqa: PLC0415 - loads the compiler

        stand_in()
    return main()


if __name__ == "__main__":
    sys.exit(run())
