"""The process in which a chat template runs: it compiles and renders what it is asked to, within limits.

Requests come from its input, answers go to its output: JSON in UTF-8, each after its length in bytes. It ends when its
input does.
"""

import importlib
import json
import signal
import struct
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

try:
    import resource
except ImportError:  # Windows: the process that asks looks after the time, and nobody after the memory
    resource = None  # type: ignore[assignment]

from engine.tokenizer.sandbox import Program, ProgramError

MAX_BYTES = 8 << 20
"""Bytes of a request, and of an answer."""

LENGTH = struct.Struct(">I")
"""What comes before each of them."""

ENDS_ITSELF = hasattr(signal, "setitimer")
"""Whether this process ends when a request takes more of the processor's time than it may."""

_LATE = ("encodings.unicode_escape", "jinja2.constants", "jinja2.debug", "logging", "html", "pprint", "textwrap")
"""What Jinja and Python load when it is needed, which is when no file can be opened any more."""

_MEMORY = 256 << 20  # bytes beyond those that it has when it begins
_STANDARD_FILES = 3  # input, output, and where errors go


def main() -> None:
    """Answer requests.

    Each says in `seconds` how much of the processor's time it may take. The first has the arguments of `Program`, the
    others those of its `render`. Answers are `{"text"}`, or `{"failure", "text"}` for a ProgramError. One more comes
    before the first request, when this process is ready.
    """
    for module in _LATE:
        importlib.import_module(module)
    _limit()
    _write(_encoded(text=""))
    program: Program | None = None
    while (request := _read()) is not None:
        asked = json.loads(request)
        _end_after(asked.pop("seconds"))
        try:
            if program is None:
                program, answer = Program(**asked), _encoded(text="")
            else:
                now = datetime.fromisoformat(asked.pop("now"))
                answer = _encoded(text=program.render(now=now, **asked))
        except ProgramError as error:
            answer = _encoded(failure=error.failure, text=error.text)
        except MemoryError:
            answer = _encoded(failure="stopped", text="")
        _end_after(0)
        _write(answer)


def _limit() -> None:
    """Give up what a template has no need of: memory, files, other processes."""
    if resource is None:
        return
    with suppress(OSError, ValueError):  # a system that knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _MEMORY,) * 2)
    for name, most in (("NOFILE", _STANDARD_FILES), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
        with suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def _address_space() -> int:
    """Return how many bytes of addresses this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _end_after(seconds: float) -> None:
    """Have the system end this process when it has computed for so long; 0 takes that back.

    That it is the system matters: it also interrupts what Python would not, as a text of gigabytes.
    """
    if ENDS_ITSELF:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _encoded(**answer: Any) -> bytes:
    encoded = json.dumps(answer, ensure_ascii=False).encode()
    if len(encoded) > MAX_BYTES:
        raise ProgramError("stopped")
    return encoded


def _read() -> bytes | None:
    length = sys.stdin.buffer.read(LENGTH.size)
    return sys.stdin.buffer.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else None


def _write(answer: bytes) -> None:
    sys.stdout.buffer.write(LENGTH.pack(len(answer)) + answer)
    sys.stdout.buffer.flush()
