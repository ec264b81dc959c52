"""One window per user: a second start hands its files to the first and ends."""

from __future__ import annotations

import getpass
import json
import os
import stat
import tempfile
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, QTimer, Signal, Slot
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from engine.private_file import UnfitFileError, check_is_file

_PATIENCE_MS = 3000  # for an answer of the first instance
_LONGEST_MESSAGE = 1 << 18  # bytes
_LONGEST_PATH = 5000  # letters: more than any system opens
_IDLE_MS = 500  # for a message that is no whole line; it is sent at once
_MOST_READ = 16  # connections at a time; the others wait
_THANKS = b"\n"


class SingleInstance(QObject):
    """Finds out whether this is the user's first instance, and connects the later ones with it.

    The first one holds a lock that ends with its process, and listens on a local socket beside it that only its user
    can reach; a socket that a crash left behind is replaced. A message is a JSON list of paths in one line, and is
    answered by an empty line; one that is too long, no such list, or does not come to its end is hung up on.
    """

    received = Signal(list)
    """Another start was asked to open these absolute paths; an empty list asks for the window itself."""

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._address = _address(name)
        self._lock = QLockFile(f"{self._address}.lock")
        self._lock.setStaleLockTime(0)  # stale is what belongs to a dead process, however old
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._accept)
        self._n_read = 0
        self.is_first = _is_in_the_way(self._lock.fileName()) or self._takes_lock()
        """Whether no other instance runs. Where no lock can be had at all, each instance is a first one."""
        if self.is_first:
            QLocalServer.removeServer(self._address)
            self._server.listen(self._address)

    def send(self, paths: list[str]) -> bool:
        """Hand paths to the first instance, and tell whether it took them; of too many, the last ones."""
        socket = QLocalSocket()
        socket.connectToServer(self._address)
        if not socket.waitForConnected(_PATIENCE_MS):
            return False
        socket.write(_message([os.path.abspath(path)[:_LONGEST_PATH] for path in paths]))
        return socket.waitForBytesWritten(_PATIENCE_MS) and socket.waitForReadyRead(_PATIENCE_MS)

    def close(self) -> None:
        """Stop listening and let another instance be the first."""
        self._server.close()
        self._lock.unlock()

    def _takes_lock(self) -> bool:
        return self._lock.tryLock(0) or self._lock.error() != QLockFile.LockError.LockFailedError

    @Slot()
    def _accept(self) -> None:
        while self._n_read < _MOST_READ and (socket := self._server.nextPendingConnection()):
            self._n_read += 1
            socket.disconnected.connect(self._end_reading)
            socket.disconnected.connect(socket.deleteLater)
            _Reader(socket, self)

    @Slot()
    def _end_reading(self) -> None:
        self._n_read -= 1
        self._accept()


class _Reader(QObject):
    """Reads the message of one connection, and lives as long as that."""

    def __init__(self, socket: QLocalSocket, instance: SingleInstance) -> None:
        super().__init__(socket)
        self._socket = socket
        self._instance = instance
        socket.setReadBufferSize(_LONGEST_MESSAGE)
        socket.readyRead.connect(self._read)
        QTimer.singleShot(_IDLE_MS, self, socket.abort)
        self._read()

    @Slot()
    def _read(self) -> None:
        if not self._socket.canReadLine():
            if self._socket.bytesAvailable() >= _LONGEST_MESSAGE:
                self._socket.abort()
            return
        try:
            paths = json.loads(bytes(self._socket.readLine().data()))
        except (ValueError, RecursionError):
            paths = None
        if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
            self._socket.write(_THANKS)
            self._socket.flush()
            self._instance.received.emit(paths)
        self._socket.disconnectFromServer()


def _is_in_the_way(lock: str) -> bool:
    """Tell whether something is in the place of a lock that is no file: Qt would open it, and wait at a pipe."""
    try:
        check_is_file(lock)
    except UnfitFileError:
        return True
    except OSError:
        pass
    return False


def _message(paths: list[str]) -> bytes:
    message = json.dumps(paths).encode() + b"\n"
    return message if len(message) < _LONGEST_MESSAGE else _message(paths[(len(paths) + 1) // 2 :])


def _address(name: str) -> str:
    if os.name == "nt":
        return f"{name}-{getpass.getuser()}"
    return str(_private_folder() / name)


def _private_folder() -> Path:
    """Return a folder for sockets that nobody else can write to; the session's own where there is one."""
    if (folder := os.environ.get("XDG_RUNTIME_DIR")) and os.path.isdir(folder):
        return Path(folder)
    path = Path(tempfile.gettempdir()) / f"dormouse-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix="dormouse-"))  # somebody else took the name: better alone than overheard
    return path
