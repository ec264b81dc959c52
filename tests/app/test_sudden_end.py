"""The start survives what the last one did not."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.opening_mark import OpeningMark
from app.settings import Settings
from app.state import wishes
from app.window import Window
from engine.paths import data_folder
from tests.app.driving import buttons, notices, press
from tests.impostors import IMPOSTORS

ROOT = Path(__file__).parents[2]
DIE = """
import os, signal, sys
from PySide6.QtWidgets import QApplication
from app import main
from app.panels import plot
from engine.session import Session

def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

setattr({owner}, {name!r}, die)
application = QApplication([])
main.main(sys.argv[1:])
"""


def die_in(owner: str, name: str, *files: Path) -> None:
    """Run the program with a fault that ends its process in a function."""
    command = [sys.executable, "-c", DIE.format(owner=owner, name=name), *map(str, files)]
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr


def start_without(slot: Path) -> Callable[[Window], object]:
    def look(window: Window):
        yield lambda: notices(window)
        (told,) = notices(window)
        assert str(slot) in told
        assert window.state.conversation.phase == "new"
        assert "Open It All the Same" in buttons(window)

    return look


def test_the_next_start_is_empty_and_offers_what_it_left_out(run, slot: Path) -> None:
    settings = Settings.load()
    settings.last_conversation = str(slot)
    settings.save()
    die_in("Session", "open")
    run(start_without(slot))

    def open_it(window: Window):
        yield lambda: notices(window)
        press(window, "Open It All the Same")
        yield lambda: window.chat.transcript.views
        assert window.state.conversation.path == slot

    die_in("Session", "open", slot)
    run(open_it, slot)  # also where it is asked for again
    assert not (data_folder() / "opening.json").exists()


def test_what_ended_a_start_is_not_opened_by_the_one_after_the_next(run, slot: Path) -> None:
    die_in("Session", "open", slot)
    run(start_without(slot), slot)

    def look(window: Window):
        yield window.isVisible
        assert notices(window) == []
        assert window.state.conversation.phase == "new"

    run(look)


def test_a_model_that_ended_the_process_is_left_out(run, slot: Path, tiny_llama: Path) -> None:
    die_in("Session", "load_model", slot, tiny_llama)

    def look(window: Window):
        yield lambda: len(notices(window)) == 2
        assert any(str(tiny_llama) in told for told in notices(window))
        assert any(str(slot) in told for told in notices(window))
        assert not window.state.model.is_ready_or_loading
        press(window, "Load It All the Same")
        yield lambda: window.state.model.model is not None
        press(window, "Open It All the Same")
        yield lambda: window.state.conversation.woken is not None

    run(look, slot, tiny_llama)


def test_a_plot_that_can_not_be_drawn_ends_no_later_start(run, slot: Path) -> None:
    """The fault comes after the conversation was read: the mark is still there."""
    die_in("plot", "_bar", slot)
    assert OpeningMark().left == {"conversation": slot}
    run(start_without(slot))


def test_what_did_no_harm_is_opened_again(run, slot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "_SETTLING_MS", 10)
    mark = data_folder() / "opening.json"

    def settle(window: Window):
        assert mark.exists()
        yield lambda: not mark.exists()
        assert window.chat.transcript.views

    run(settle, slot)

    def look(window: Window):
        yield lambda: window.chat.transcript.views
        assert notices(window) == []

    run(look)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"[" * 5000, b'{"conversation": 1}', b'{"other": "/a"}', b"\xff"]
)
def test_a_mark_that_makes_no_sense_marks_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mark").write_bytes(content)
    assert OpeningMark(tmp_path / "mark").left == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_no_file_marks_nothing(tmp_path: Path, kind: str) -> None:
    IMPOSTORS[kind](tmp_path / "mark")
    assert OpeningMark(tmp_path / "mark").left == {}


def test_a_mark_names_what_is_being_opened_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    mark = OpeningMark(path)
    mark.begin("conversation", Path("/a\udcff.slot"))
    mark.begin("model", Path("/m.gguf"))
    mark.begin("conversation", Path("/b.slot"))
    assert OpeningMark(path).left == {"conversation": Path("/b.slot"), "model": Path("/m.gguf")}
    mark.end("conversation")
    assert OpeningMark(path).left == {"model": Path("/m.gguf")}
    mark.end("model")
    assert not path.exists()
    OpeningMark(tmp_path / "no folder" / "mark").begin("model", Path("/m.gguf"))  # goes on without
