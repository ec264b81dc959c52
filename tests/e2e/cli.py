"""`dormouse-cli` in a process of its own, on the kernels that the tests run with."""

import os
import sys

from engine.cli import main

if __name__ == "__main__":
    if os.environ.get("DORMOUSE_TEST_INSTRUCTION_SET"):
        from tests.instruction_sets import stand_in

        stand_in()
    sys.exit(main())
