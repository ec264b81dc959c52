"""The arrays that pass between all parts of the engine, by what is in them; docstrings give their shapes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
TokenIds: TypeAlias = NDArray[np.int32]
