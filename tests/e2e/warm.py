"""Processes that run the command line without importing it first: each is forked from one that has done so.

What a test means by a new process is that nothing of the old one is left. That is so here as well: the process from
which they are forked has imported modules, and done nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

MODULES = ("tests.e2e.cli", "engine.cli.chat", "engine.kernels.compiled.kernels")
_MAX_BYTES = 1 << 20  # of a request


class WarmProcess:
    """Starts processes that run `tests.e2e.cli`, one at a time."""

    def __init__(self) -> None:
        """Start the process from which the others are forked."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.e2e.warm", str(theirs.fileno())]
        folder = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, cwd=folder, pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def start(self, arguments: Sequence[str], stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> int:
        """Start a process with this one's environment and folder; return its id."""
        request = {"arguments": list(arguments), "environment": dict(os.environ), "folder": str(Path.cwd())}
        files = [file.fileno() for file in (stdin, stdout, stderr)]
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        return int(self._socket.recv(_MAX_BYTES))

    def wait(self, timeout: float) -> int:
        """Return the status of the process that was started last; raise TimeoutError where it takes longer."""
        self._socket.settimeout(timeout)
        try:
            return int(self._socket.recv(_MAX_BYTES))
        finally:
            self._socket.settimeout(None)


def serve(requests: socket.socket) -> Sequence[str]:
    """Answer requests by forks; return, in each of them, the arguments that it is to run with."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            request = json.loads(message)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            return list(request["arguments"])
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    from tests.e2e.cli import run

    sys.argv[1:] = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(run())
