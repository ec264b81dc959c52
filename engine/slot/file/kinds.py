"""What the values in a slot file may be: one kind for each sort of column, asked wherever a value comes in.

A file may come from anybody. What its checksum vouches for is therefore still looked at: numbers are in the range that
their meaning has, words are among those that there are, and texts are as long as what they say can be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

import numpy as np

from engine.slot.records import CheckpointReason, FinishReason, Reason, Role, Source

MAX_ID = 1 << 53  # and some room above it for those that come
_MAX_COUNT = 1 << 40
_END_OF_TIME = 100_000_000_000.0  # the year 5138, which calendars still know
_MAX_MILLISECONDS = 1e12
_MAX_NAME = 500  # letters
_MAX_PATH = 4096
_MAX_JSON = 1 << 20
_MAX_DEPTH = 20  # of lists and objects in each other

_SQL_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


@dataclass(frozen=True)
class Kind:
    """What a value may be: of one Python type, which SQLite's is named after, or None if that is allowed."""

    type: type[int] | type[float] | type[str] | type[bytes]
    holds: Callable[[Any], bool] = lambda _: True
    optional: bool = False

    @property
    def sql(self) -> str:
        """How SQLite declares a column of this kind."""
        return _SQL_TYPES[self.type] + ("" if self.optional else " NOT NULL")

    def is_valid(self, value: object) -> bool:
        """Whether a value that was read is one of this kind."""
        if value is None:
            return self.optional
        return type(value) is self.type and self.holds(value)


def parse_json(text: str) -> Any:
    """Return what a text says in JSON; raise ValueError for what nothing of ours says: infinities, deep nesting."""
    if len(text) > _MAX_JSON or _depth(text) > _MAX_DEPTH:
        raise ValueError("that is more than a slot file says anywhere")
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # fails for halves of characters, which nothing can show
    return value


def _depth(text: str) -> int:
    """Return how deeply lists and objects are nested in a text, or what is not less than that."""
    brackets = text.count("[") + text.count("{")
    if brackets <= _MAX_DEPTH:
        return brackets
    depth = deepest = 0
    for letter in text:
        if letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _is_json(text: str, kind: type = object) -> bool:
    try:
        return isinstance(parse_json(text), kind)
    except ValueError:
        return False


def _one_of(literal: object, *, optional: bool = False) -> Kind:
    words = frozenset(get_args(literal))
    return Kind(str, words.__contains__, optional)


def _name(most: int) -> Kind:
    return Kind(str, lambda text: len(text) <= most and "\0" not in text)


ID = Kind(int, lambda id: 1 <= id <= MAX_ID)
ID_OR_NONE = Kind(int, ID.holds, optional=True)
COUNT = Kind(int, lambda n: 0 <= n <= _MAX_COUNT)
FLAG = Kind(int, lambda n: n in (0, 1))
MARK = Kind(int, lambda n: n == 1, optional=True)
CHECKSUM = Kind(int)
TIME = Kind(float, lambda seconds: 0 <= seconds < _END_OF_TIME)
DURATION = Kind(float, lambda ms: math.isfinite(ms) and 0 <= ms <= _MAX_MILLISECONDS)
TEXT = Kind(str)
NAME = _name(_MAX_NAME)
NAME_OR_NONE = Kind(str, NAME.holds, optional=True)
PATH = _name(_MAX_PATH)
JSON = Kind(str, _is_json)
JSON_OBJECT = Kind(str, lambda text: _is_json(text, dict))
TOKEN_IDS = Kind(bytes, lambda data: len(data) % 4 == 0 and bool((np.frombuffer(data, "<i4") >= 0).all()))
DIGEST = Kind(bytes, lambda data: len(data) == 16)
MAC = Kind(bytes, lambda data: len(data) == 32)
DATA = Kind(bytes)
DATA_OR_NONE = Kind(bytes, optional=True)
FLOATS = Kind(bytes, lambda data: len(data) % 4 == 0 and bool(np.isfinite(np.frombuffer(data, "<f4")).all()))

TARGET = Kind(str, lambda role: role == "target")
ROLE = _one_of(Role)
FINISH_REASON = _one_of(FinishReason, optional=True)
CHECKPOINT_REASON = _one_of(CheckpointReason)
SOURCE = _one_of(Source)
REASON = _one_of(Reason)
