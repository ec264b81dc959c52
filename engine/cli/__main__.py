"""Run the command line with `python -m engine.cli`."""

import sys

from engine.cli import main

sys.exit(main())
