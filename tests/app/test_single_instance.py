"""One window per user: files go to the first instance, and nothing that a crash leaves does harm."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from app.single_instance import SingleInstance
from tests.impostors import IMPOSTORS

pytestmark = pytest.mark.usefixtures("qapp")
NAME = "dormouse"
LONG = b'["/' + b"x" * 900_000 + b'"]\n'
SEND = """
import sys
from PySide6.QtCore import QCoreApplication
from app.single_instance import SingleInstance
application = QCoreApplication([])
instance = SingleInstance(sys.argv[1])
print(instance.is_first, instance.send(sys.argv[2:]))
"""
HOLD = """
import sys
from PySide6.QtCore import QCoreApplication
from app.single_instance import SingleInstance
application = QCoreApplication([])
instance = SingleInstance(sys.argv[1])
print(instance.is_first, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _sockets_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def first() -> Iterator[SingleInstance]:
    instance = SingleInstance(NAME)
    assert instance.is_first
    yield instance
    instance.close()


def wait_for(condition: Callable[[], bool], qtbot: QtBot) -> None:
    qtbot.waitUntil(condition, timeout=10_000)


def test_second_start_hands_over_its_files(first: SingleInstance, qtbot: QtBot, tmp_path: Path) -> None:
    received: list[list[str]] = []
    first.received.connect(received.append)
    command = [sys.executable, "-c", SEND, NAME, "a b.slot", "/ünï/c.slot"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()}, stdout=subprocess.PIPE, text=True
    ) as other:
        wait_for(lambda: other.poll() is not None, qtbot)
        assert other.stdout is not None
        assert other.stdout.read() == "False True\n"
    assert received == [[str(tmp_path / "a b.slot"), "/ünï/c.slot"]]


def test_no_files_ask_for_the_window(first: SingleInstance, qtbot: QtBot) -> None:
    received: list[list[str]] = []
    first.received.connect(received.append)
    with subprocess.Popen([sys.executable, "-c", SEND, NAME]) as other:
        wait_for(lambda: other.poll() is not None, qtbot)
    assert received == [[]]


def test_what_a_crash_leaves_does_no_harm(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not SingleInstance(NAME).is_first
        other.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) >= 2
    instance = SingleInstance(NAME)
    assert instance.is_first
    instance.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_lock_that_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    IMPOSTORS[kind](tmp_path / f"{NAME}.lock")
    instance = SingleInstance(NAME)
    assert instance.is_first
    instance.close()


def test_instance_that_does_not_answer_is_noticed(first: SingleInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.single_instance._PATIENCE_MS", 200)
    second = SingleInstance(NAME)
    assert not second.is_first
    assert not second.send(["/a.slot"])  # the first one's event loop does not run meanwhile
    QCoreApplication.processEvents()


def test_after_the_first_another_is_first(first: SingleInstance) -> None:
    first.close()
    second = SingleInstance(NAME)
    assert second.is_first
    second.close()


def test_names_are_apart(first: SingleInstance) -> None:
    other = SingleInstance("another")
    assert other.is_first
    other.close()


@pytest.mark.parametrize(
    "message", [b"no json\n", b"[1]\n", b'{"a": 1}\n', b"[" * 5000 + b"\n", b"x" * (3 << 20), LONG, b""]
)
def test_foreign_messages_are_ignored(first: SingleInstance, qtbot: QtBot, tmp_path: Path, message: bytes) -> None:
    received: list[list[str]] = []
    first.received.connect(received.append)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(tmp_path / NAME))
        other.setblocking(False)
        for start in range(0, len(message), 1 << 16):
            with contextlib.suppress(OSError):  # it hangs up on nonsense
                other.send(message[start : start + (1 << 16)])
            qtbot.wait(1)
    qtbot.wait(20)
    assert received == []


def test_idle_connections_are_hung_up_on_and_keep_nobody_out(
    first: SingleInstance, qtbot: QtBot, tmp_path: Path
) -> None:
    received: list[list[str]] = []
    first.received.connect(received.append)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(50)]
        most = 0
        for number, other in enumerate(idle):
            other.connect(str(tmp_path / NAME))
            other.setblocking(False)
            if number % 10 == 9:
                qtbot.wait(1)
                most = max(most, first._n_read)
        assert 0 < most <= 16
        with subprocess.Popen([sys.executable, "-c", SEND, NAME], stdout=subprocess.PIPE) as second:
            wait_for(lambda: second.poll() is not None, qtbot)
        wait_for(lambda: all(is_hung_up(other) for other in idle), qtbot)
    assert received == [[]]


def is_hung_up(other: socket.socket) -> bool:
    try:
        return other.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_only_what_fits_into_a_message_is_sent(first: SingleInstance, qtbot: QtBot, tmp_path: Path) -> None:
    received: list[list[str]] = []
    first.received.connect(received.append)
    code = SEND.replace("sys.argv[2:]", "[f'/{n}' + 'x' * 900 for n in range(1000)] + ['/' + 'y' * 900_000]")
    with subprocess.Popen([sys.executable, "-c", code, NAME]) as other:
        wait_for(lambda: other.poll() is not None, qtbot)
    ((*paths, last),) = received
    assert len(last) == 5000
    assert paths[-1].startswith("/999x")
    assert len(paths) > 100


def test_sockets_are_private(first: SingleInstance, tmp_path: Path) -> None:
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_without_a_runtime_folder_there_is_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = SingleInstance(NAME), SingleInstance(NAME)
    assert first.is_first
    assert not second.is_first
    (folder,) = tmp_path.glob("dormouse-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    first.close()

    # a folder that others could write to is not trusted
    folder.chmod(0o777)
    third, fourth = SingleInstance(NAME), SingleInstance(NAME)
    assert third.is_first
    assert fourth.is_first
    third.close()
    fourth.close()
