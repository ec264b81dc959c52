"""The other side of template_worker: it starts the process of a chat template, asks it, and ends it in time."""

from __future__ import annotations

import errno
import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime
from threading import Lock, Thread
from typing import Any

from engine.helper import helper_command, start_helper
from engine.tokenizer import template_worker
from engine.tokenizer.sandbox import ProgramError
from engine.tokenizer.template_worker import ENDS_ITSELF, LENGTH, MAX_BYTES

SECONDS = 2.0
"""Of the processor's time that compiling a template may take, and each rendering."""

Check = Callable[[], None]

_PATIENCE = 20.0 if ENDS_ITSELF else 3.0  # seconds for an answer: a busy machine must not look like a bad template
_START_PATIENCE = 60.0  # seconds for the process to begin, from a disk that is slow
_PIECE = 1 << 16  # bytes that a pipe gives at once
_CHECK_SECONDS = 0.02  # how often is asked whether the answer is wanted still


def no_check() -> None:
    """Let what takes its time go on."""


class TemplateProcess:
    """A chat template in a process of its own, which is started when needed and kept until nobody holds this.

    It may be used from any thread. Where the template is too much for its limits, or is no longer wanted, its process
    ends, and another one is started for the next rendering.
    """

    def __init__(self, source: str, names: Mapping[str, Any]) -> None:
        """`names` are those of the template's variables that never change."""
        self._program = {"source": source, "names": dict(names)}
        self._asking = Lock()
        self._child: _Child | None = None
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Have the process begin and compile the template, and do not wait for that.

        Raises:
            OSError: it can't be started.
        """
        with self._asking:
            self._started()

    def compile(self, check: Check) -> None:
        """Wait until the template is compiled; raises as `render` does."""
        with self._only_me(check):
            self._compiled(check)

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, now: datetime, check: Check
    ) -> str:
        """Return what the template makes of a conversation.

        `check` is called all the while that this waits; what it raises ends the rendering, and passes.

        Raises:
            ProgramError: the template fails, or was stopped.
            OSError: the process can't be started.
        """
        request = {"messages": messages, "add_generation_prompt": add_generation_prompt, "now": now.isoformat()}
        with self._only_me(check):
            child = self._compiled(check)
            return self._wait(child.ask(request), check, _PATIENCE)

    def close(self) -> None:
        """End the process, also under a rendering in another thread."""
        self._forget()

    @contextmanager
    def _only_me(self, check: Check) -> Iterator[None]:
        """Keep other threads from asking meanwhile."""
        while not self._asking.acquire(timeout=_CHECK_SECONDS):
            check()
        try:
            yield
        finally:
            self._asking.release()

    def _started(self) -> _Child:
        if self._child is None:
            self._child = child = _Child(self._program)
            self._end = weakref.finalize(self, child.end)
        return self._child

    def _compiled(self, check: Check) -> _Child:
        child = self._started()
        try:
            self._wait(child.ready, check, _START_PATIENCE)
        except ProgramError as error:
            raise OSError(errno.EIO, "it ended before it began") from error
        self._wait(child.compiled, check, _PATIENCE)
        return child

    def _wait(self, answer: Future[str], check: Check, seconds: float) -> str:
        """Wait for an answer; a process that has not given it is of no more use."""
        deadline = time.monotonic() + seconds
        try:
            while not answer.done() and time.monotonic() < deadline:
                check()
                wait([answer], _CHECK_SECONDS)
            return answer.result(0)
        except TimeoutError as error:
            self._forget()
            raise ProgramError("stopped") from error
        except BaseException as error:
            if not isinstance(error, ProgramError) or error.failure == "stopped":
                self._forget()
            raise

    def _forget(self) -> None:
        self._end()
        self._child = None


class _Child:
    """A process while it lives: `ready` and then `compiled` are done when it is that far."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self._process = start_helper(helper_command(template_worker.__name__))
        self._pipes = Lock()
        self.ready: Future[str] = Future()
        self.compiled: Future[str] = Future()
        self._in_background(self._begin, program)

    def ask(self, request: Mapping[str, Any]) -> Future[str]:
        """Begin a rendering, and return what will be its text or a ProgramError."""
        answer: Future[str] = Future()
        self._in_background(_settle, answer, self._exchange, request)
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        with self._pipes:  # whoever used them finds them at their end
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        self._process.wait()

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        """Use the pipes in another thread: a process that neither reads nor writes holds that one up, and no other."""

        def run() -> None:
            with self._pipes:
                work(*arguments)

        Thread(target=run, name="chat template", daemon=True).start()

    def _begin(self, program: Mapping[str, Any]) -> None:
        _settle(self.ready, self._receive)
        _settle(self.compiled, self._exchange, program)

    def _exchange(self, request: Mapping[str, Any]) -> str:
        encoded = json.dumps({**request, "seconds": SECONDS}, ensure_ascii=False).encode(errors="surrogatepass")
        if len(encoded) > MAX_BYTES:
            raise ProgramError("failed", "the conversation is too long for it")
        self._send(LENGTH.pack(len(encoded)) + encoded)
        return self._receive()

    def _send(self, content: bytes) -> None:
        pipe, left = self._process.stdin, memoryview(content)
        assert pipe is not None
        while left:
            left = left[pipe.write(left) :]

    def _receive(self) -> str:
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        if length > MAX_BYTES:
            raise ProgramError("stopped")
        answer = json.loads(self._read(length))
        if "failure" in answer:
            raise ProgramError(answer["failure"], answer["text"])
        return str(answer["text"])

    def _read(self, n: int) -> bytes:
        pipe, content, left = self._process.stdout, bytearray(), n
        assert pipe is not None
        while left:
            piece = pipe.read(min(left, _PIECE))
            if not piece:
                raise EOFError
            content += piece
            left -= len(piece)
        return bytes(content)


def _settle(answer: Future[str], work: Callable[..., str], *arguments: Any) -> None:
    try:
        answer.set_result(work(*arguments))
    except ProgramError as error:
        answer.set_exception(error)
    except Exception:  # the process has ended, or what it writes is no answer
        answer.set_exception(ProgramError("stopped"))
