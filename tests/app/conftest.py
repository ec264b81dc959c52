"""What the window's tests get: Qt without a screen, and the real program."""

import os

os.environ["QT_QPA_PLATFORM"] = "offscreen"

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication

from app.main import main
from tests.app.driving import Person, Script, windows
from tests.slot_samples import write_conversation


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    """A slot file with a conversation."""
    path = tmp_path / "a.slot"
    write_conversation(path)
    return path


@pytest.fixture
def run(qapp: QApplication) -> Callable[..., None]:
    """Run the program with some arguments and a script, to its end."""

    def run_program(script: Script, *argv: object) -> None:
        before = threading.enumerate()
        person = Person(script)
        assert main([str(argument) for argument in argv]) == 0
        # closing the last window asked once more, and would end the loops of the next test
        QApplication.removePostedEvents(qapp, QEvent.Type.Quit)
        if person.error is not None:
            raise person.error
        assert person.is_done
        assert not windows()
        assert [thread.name for thread in threading.enumerate() if thread not in before] == []

    return run_program
