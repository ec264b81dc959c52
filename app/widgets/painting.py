"""Methods that Qt calls while it paints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def while_painting(instead: Callable[[], Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep the exceptions of a method from Qt: they are reported, and what `instead` makes is returned.

    An exception that leaves the painting of a scene ends the process. In slots there is no need for this.
    """

    def wrap(method: Callable[..., T]) -> Callable[..., T]:
        @wraps(method)
        def guarded(*arguments: Any, **keywords: Any) -> T:
            try:
                return method(*arguments, **keywords)
            except Exception:
                sys.excepthook(*sys.exc_info())
                made: T = instead()
                return made

        return guarded

    return wrap


def nothing() -> None:
    """Stand in for what was to be painted."""
