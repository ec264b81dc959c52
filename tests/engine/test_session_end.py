"""The end of a session: it comes, whatever a template, a disk or a thread does."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import events
from engine.jobs import Job
from engine.runtime import EngineSettings
from engine.session import Session
from engine.slot.file.slot_file import SlotFile

ROOT = Path(__file__).parents[2]
SOON = 20.0  # seconds, for a machine that has other things to do

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(name="gate")
def _gate() -> Iterator[threading.Event]:
    """What hangs in a test hangs until its end."""
    gate = threading.Event()
    yield gate
    gate.set()
    for thread in threading.enumerate():
        if thread.name in ("engine", "slot file"):
            thread.join()


class EndlessTemplate:
    """A prompt builder whose template never ends."""

    def __init__(self, reached: threading.Event, gate: threading.Event) -> None:
        self._reached, self._gate = reached, gate

    def encode_content(self, _role: str, _text: str) -> Any:
        self._reached.set()
        while not self._gate.is_set():
            time.sleep(0.001)
        raise ValueError


def opened(session: Session, path: Path | None) -> int:
    job = session.open(path)
    assert job.conversation is not None
    session._conversations[job.conversation].store.flush()
    return job.conversation


def closed(session: Session) -> tuple[list[str], float]:
    """Close a session, in a hurry; return what it says and the seconds that it took."""
    begun = time.monotonic()
    unsaved = session.close(engine_seconds=0.5, disk_seconds=0.5)
    return unsaved, time.monotonic() - begun


def test_a_template_that_never_ends(tmp_path: Path, gate: threading.Event) -> None:
    told: list[events.Event] = []
    session, reached = Session(told.append), threading.Event()
    runtime: Any = SimpleNamespace(
        settings=EngineSettings(),
        n_ctx=100,
        tokenizer=SimpleNamespace(digest="d"),
        prompt_builder=lambda **_: EndlessTemplate(reached, gate),
    )
    session._runtime = runtime
    other = opened(session, tmp_path / "b.slot")
    session.send(opened(session, tmp_path / "a.slot"), "Hello?")
    assert reached.wait(SOON)
    session.send(other, "And I?")
    unsaved, seconds = closed(session)
    assert seconds < SOON
    assert unsaved == ["The model did not stop in time: the end of what it did may not be saved."]
    n_told = len(told)
    gate.set()
    session._thread.join()
    assert len(told) == n_told
    for name, text, ending in (("a", "Hello?", "interrupted"), ("b", "And I?", "cancelled")):
        with SlotFile.open(tmp_path / f"{name}.slot") as file:  # the lock is gone, and the words are there
            assert [(m.text, m.finish_reason) for m in file.messages()] == [(text, None), ("", ending)]


def test_a_disk_that_does_not_answer_keeps_nobody_else_from_being_saved(tmp_path: Path, gate: threading.Event) -> None:
    session, reached = Session(lambda _: None), threading.Event()

    def hang(_: SlotFile) -> None:
        reached.set()
        gate.wait()

    stuck, fine = opened(session, tmp_path / "a.slot"), opened(session, tmp_path / "b.slot")
    session._conversations[stuck].store.call(hang)
    assert reached.wait(SOON)
    session.send(stuck, "Lost?")
    kept = session._conversations[fine].begin_send("Kept.")
    unsaved, seconds = closed(session)
    assert seconds < SOON
    (sentence,) = unsaved
    assert sentence == f"The disk does not answer: the newest part of {tmp_path / 'a.slot'} may not be saved."
    assert kept.done()
    with SlotFile.open(tmp_path / "b.slot") as file:
        assert file.messages()[0].text == "Kept."
    assert closed(session)[0] == []  # it was said


def test_kernels_are_not_taken_from_a_thread_that_does_not_end(gate: threading.Event) -> None:
    session, reached = Session(lambda _: None), threading.Event()
    ended: list[bool] = []
    kernels: Any = SimpleNamespace(close=lambda: ended.append(True))
    session._kernels = kernels

    def hang(_: Job) -> None:
        reached.set()
        gate.wait()

    session._submit(None, hang)
    assert reached.wait(SOON)
    unsaved, _ = closed(session)
    assert len(unsaved) == 1
    assert ended == []
    gate.set()
    session._thread.join()
    assert closed(session)[0] == []
    assert ended == [True]


PROGRAM = """
import sys, threading, time
from pathlib import Path
from engine.session import Session

session = Session(print)
job = session.open(Path(sys.argv[1]))
reached = threading.Event()

def hang(*_):
    reached.set()
    while True:
        time.sleep(0.001)

{hang}
reached.wait()
print(len(session.close(engine_seconds=0.2, disk_seconds=0.2)))
"""


@pytest.mark.parametrize(
    "hang", ["session._submit(None, hang)", "session._conversations[job.conversation].store.call(hang)"]
)
def test_the_process_can_end(tmp_path: Path, hang: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(hang=hang), str(tmp_path / "a.slot")]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=SOON)
    assert run.stdout.splitlines()[-1] == "1"
    assert run.stderr == ""


def test_a_conversation_that_could_not_be_closed_is_not_waited_for_again(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[events.Event] = []
    session, reached = Session(told.append), threading.Event()
    conversation = opened(session, tmp_path / "a.slot")

    def hang(_: SlotFile) -> None:
        reached.set()
        gate.wait()

    store = session._conversations[conversation].store
    store.call(hang)
    assert reached.wait(SOON)
    close: Callable[[float], None] = store.close
    monkeypatch.setattr(store, "close", lambda _seconds: close(0.1))
    session.close_conversation(conversation)
    unsaved, _ = closed(session)
    assert isinstance(told[-1], events.Failed)
    assert "The disk does not answer" in told[-1].text
    assert len(unsaved) == 1
