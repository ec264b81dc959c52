"""Exceptions that nobody caught: in every thread, one dialog, in the log, never twice."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app import crash
from app.widgets.problem_dialog import ProblemDialog
from engine.errors import DormouseError
from tests.impostors import IMPOSTORS

pytestmark = pytest.mark.qt_no_exception_capture


@pytest.fixture
def reporter(qapp: QApplication, tmp_path: Path) -> Iterator[crash.CrashReporter]:
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    installed = crash.install(tmp_path)
    yield installed
    for dialog in dialogs():
        dialog.reject()
    installed.uninstall()
    assert (sys.excepthook, threading.excepthook, sys.unraisablehook) == before


def dialogs() -> list[ProblemDialog]:
    return [w for w in QApplication.topLevelWidgets() if isinstance(w, ProblemDialog) and w.isVisible()]


def shown(qtbot: QtBot) -> ProblemDialog:
    qtbot.waitUntil(lambda: len(dialogs()) == 1)
    return dialogs()[0]


def log(folder: Path) -> str:
    return (folder / "dormouse.log").read_text()


def fail() -> None:
    raise ValueError("odd number")


@pytest.mark.usefixtures("reporter")
def test_exception_in_a_slot_is_shown_with_versions(qtbot: QtBot, tmp_path: Path) -> None:
    QTimer.singleShot(0, fail)
    dialog = shown(qtbot)
    for words in ("odd number", "in fail", "Dormouse 0", "Python 3", "Qt 6", "kernels: none"):
        assert words in dialog.details
    assert "odd number" in log(tmp_path)
    dialog.copy_details()
    assert QApplication.clipboard().text() == dialog.details


def test_exception_in_a_thread_is_shown_in_the_gui_thread(
    reporter: crash.CrashReporter, qtbot: QtBot, tmp_path: Path
) -> None:
    reporter.kernels = "numpy"
    thread = threading.Thread(target=fail, name="engine")
    thread.start()
    thread.join()
    assert not dialogs()  # but the log has it already
    assert "In the thread engine" in log(tmp_path)
    dialog = shown(qtbot)
    assert "kernels: numpy" in dialog.details
    assert dialog.thread() is QApplication.instance().thread()


@pytest.mark.usefixtures("reporter")
def test_exception_that_cannot_be_raised_is_shown(qtbot: QtBot) -> None:
    class Careless:
        def __del__(self) -> None:
            fail()

    Careless()
    gc.collect()
    assert "__del__" in shown(qtbot).details


@pytest.mark.usefixtures("reporter")
def test_errors_for_people_are_told_as_they_stand(qtbot: QtBot) -> None:
    def refuse() -> None:
        raise DormouseError("There is no such file.")

    QTimer.singleShot(0, refuse)
    assert "There is no such file.\n" in shown(qtbot).details


def test_many_problems_make_one_dialog(reporter: crash.CrashReporter, qtbot: QtBot, tmp_path: Path) -> None:
    for number in range(100):
        reporter.report(f"Problem {number}.", "details")
    dialog = shown(qtbot)
    qtbot.waitUntil(lambda: "more problems" in dialog.details)
    assert "Problem 0." in dialog.details
    assert "Problem 5." in dialog.details
    assert "Problem 99." not in dialog.details
    assert "Problem 99." in log(tmp_path)
    dialog.reject()
    reporter.report("Another one.", "details")
    assert "Another one." in shown(qtbot).details


def test_reporting_that_fails_ends_there(
    reporter: crash.CrashReporter, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_again(kernels: str) -> str:
        reporter.report("Again.", "")
        raise RuntimeError

    monkeypatch.setattr(crash, "versions", report_again)
    with pytest.raises(RuntimeError):
        reporter.report("Once.", "")
    monkeypatch.undo()
    reporter.report("Later.", "")
    assert "Later." in shown(qtbot).details


@pytest.mark.usefixtures("reporter")
def test_interrupt_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "KeyboardInterrupt" in capsys.readouterr().err
    assert not dialogs()


def test_log_is_private_and_bounded(
    reporter: crash.CrashReporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash, "_LONGEST_LOG", 10_000)
    for number in range(100):
        reporter.report(f"Problem {number}.", "x" * 1000)
    files = sorted(path.name for path in tmp_path.glob("dormouse.log*"))
    assert files == ["dormouse.log", "dormouse.log.1"]
    for name in files:
        assert (tmp_path / name).stat().st_size < 12_000
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert "Problem 99." in log(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_no_file_is_not_written_to(qapp: QApplication, qtbot: QtBot, tmp_path: Path, kind: str) -> None:
    IMPOSTORS[kind](tmp_path / "dormouse.log")
    reporter = crash.install(tmp_path)
    try:
        reporter.report("No log.", "")
        shown(qtbot).close()
    finally:
        reporter.uninstall()
    assert not (tmp_path / "nothing").exists()


def test_without_a_log_there_is_still_a_dialog(qapp: QApplication, qtbot: QtBot, tmp_path: Path) -> None:
    reporter = crash.install(tmp_path / "nowhere")
    try:
        reporter.report("No log.", "")
        dialog = shown(qtbot)
        assert dialog.isVisible()
        dialog.reject()
    finally:
        reporter.uninstall()


def test_crash_of_the_interpreter_is_logged(tmp_path: Path) -> None:
    code = (
        "import faulthandler, pathlib, sys; from PySide6.QtCore import QCoreApplication; from app import crash;"
        "application = QCoreApplication([]); reporter = crash.install(pathlib.Path(sys.argv[1]));"
        "faulthandler._sigsegv()"
    )
    status = subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode
    assert status < 0
    assert "Segmentation fault" in log(tmp_path)
