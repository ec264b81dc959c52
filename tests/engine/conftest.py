"""What the tests of the engine share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernel_cache() -> Path:
    """Folder in which the kernels of all tests are compiled once."""
    return Path(os.environ["DORMOUSE_KERNEL_CACHE"])
