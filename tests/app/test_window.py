"""The window without a model: what can be read, refused, offered and reached."""

import os
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QLineEdit,
    QPlainTextEdit,
    QProgressBar,
    QTextBrowser,
    QWidget,
)

from app.main import main
from app.panels import plot
from app.panels.outlook import OutlookPanel
from app.settings import Settings
from app.widgets.notice_bar import NoticeBar
from app.widgets.problem_dialog import ProblemDialog
from app.window import Window
from engine.conversation import read_transcript
from engine.paths import library_folder, log_folder
from engine.session import Session
from engine.slot.file.slot_file import SlotFile
from tests.app.driving import buttons, choose, drop, notices, press
from tests.slot_samples import write_conversation

CONTROLS = (QAbstractButton, QAbstractItemView, QLineEdit, QPlainTextEdit, QProgressBar, QTextBrowser)


def texts(window: Window) -> list[str]:
    return [view.source for view in window.chat.transcript.views]


def is_of_qt(control: QWidget) -> bool:
    """Tell whether Qt made a control inside another one."""
    return control.objectName().startswith("qt_") or isinstance(control.parent(), QLineEdit)


def test_every_control_has_a_name(run, slot: Path) -> None:
    def look(window: Window):
        yield lambda: texts(window)
        window.state.reports.tell("Something is wrong.")
        unnamed = [
            control
            for kind in CONTROLS
            for control in window.findChildren(kind)
            if not control.accessibleName() and not is_of_qt(control)
        ]
        assert not unnamed
        assert all(action.text() for action in window.menuBar().actions())

    run(look, slot)


def test_a_conversation_is_readable_without_its_model(run, slot: Path) -> None:
    def read(window: Window):
        yield lambda: texts(window) == expected
        (panel,) = window.findChildren(OutlookPanel)
        assert "No model is loaded; it can be read" in panel.text
        assert "is not at" in panel.text
        assert "Load Model…" in buttons(window)
        window.chat.composer.set_text("Hello?")
        press(window, "Send")
        yield lambda: notices(window) == ["No model is loaded, so nobody can answer."]
        assert window.chat.composer.editor.toPlainText() == "Hello?"

    with SlotFile.open(slot, read_only=True) as file:
        expected = [message.text for message in read_transcript(file).path() if message.role != "system"]
    run(read, slot)


def test_what_can_not_be_opened_is_told(run, tmp_path: Path) -> None:
    (tmp_path / "junk.slot").write_bytes(b"junk" * 10_000)
    (tmp_path / "junk.gguf").write_bytes(b"junk" * 10)

    def try_all(window: Window):
        drop(window, tmp_path / "missing.slot")
        yield lambda: len(notices(window)) == 1
        drop(window, tmp_path / "junk.slot")
        yield lambda: len(notices(window)) == 2
        drop(window, tmp_path / "junk.gguf")
        yield lambda: len(notices(window)) == 3
        assert window.chat.is_welcoming
        assert window.state.conversation.phase == "new"
        assert not window.state.model.is_ready_or_loading
        bar = next(bar for bar in window.findChildren(NoticeBar) if bar.isVisible())
        press(bar, "Close this notice")
        assert len(notices(window)) == 2

    run(try_all)


def test_a_file_in_a_read_only_place_opens_as_a_copy(run, slot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *a, **k: Path(path) != slot and access(path, *a, **k))

    def read(window: Window):
        drop(window, slot)
        yield lambda: texts(window)
        assert window.state.conversation.path is not None
        assert window.state.conversation.path.parent == library_folder()
        assert "a copy of it is opened in your library" in notices(window)[0]

    run(read)


def test_switching_back_and_forth_and_deleting(run, tmp_path: Path) -> None:
    paths = [tmp_path / "a.slot", tmp_path / "b.slot"]
    for path in paths:
        write_conversation(path)

    def switch(window: Window):
        state = window.state
        for path in [*paths, paths[0], paths[1], paths[0]]:
            drop(window, path)
            yield lambda path=path: state.conversation.path == path and state.conversation.phase == "idle"
        assert state.settings.recent[:2] == [str(paths[0]), str(paths[1])]
        choose(window, "New Chat")
        state.remove_conversation(paths[0])
        yield lambda: not paths[0].exists()
        assert notices(window) == []

    run(switch)


def test_what_was_there_last_comes_back(run, slot: Path) -> None:
    def arrange(window: Window):
        yield lambda: texts(window)
        window.resize(720, 560)
        choose(window, "Prefill Plot")
        choose(window, "Zoom In")

    def find(window: Window):
        yield lambda: texts(window)
        assert (window.width(), window.height()) == (720, 560)
        assert window.state.settings.zoom == 110
        assert not window.state.settings.show_plot

    run(arrange, slot)
    assert Settings.load().last_conversation == str(slot)
    run(find)


def test_the_small_window_is_the_chat_alone(run, slot: Path) -> None:
    def shrink(window: Window):
        yield lambda: texts(window)
        window.resize(480, 400)
        yield lambda: window.width() == 480 and window.height() == 400
        assert window.chat.width() == 480

    run(shrink, slot)


def test_dark_and_light_are_followed(run, slot: Path, qapp: QApplication) -> None:
    light = qapp.palette()

    def switch(window: Window):
        yield lambda: texts(window)
        palette = qapp.palette()
        palette.setColor(palette.ColorRole.Base, Qt.GlobalColor.black)
        qapp.setPalette(palette)
        yield lambda: lightness(window) < 20
        qapp.setPalette(light)
        yield lambda: lightness(window) > 200
        seen.append(lightness(window))

    def lightness(window: Window) -> int:
        return window.chat.grab().toImage().pixelColor(4, window.chat.height() - 4).lightness()

    seen: list[int] = []
    try:
        run(switch, slot)
        assert len(seen) == 1  # both came true
    finally:
        qapp.setPalette(light)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("dormouse ")


def test_faults_of_the_program_end_in_a_dialog(run) -> None:
    def look(window: Window):
        window.state.reports.problem_found.emit("Something went wrong.", "Traceback …")
        yield lambda: any(isinstance(widget, ProblemDialog) for widget in QApplication.topLevelWidgets())
        (dialog,) = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, ProblemDialog))
        yield dialog.isVisible
        dialog.close()

    run(look)
    assert "Something went wrong." in (log_folder() / "dormouse.log").read_text()


def test_words_that_can_not_be_saved_come_back(run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def write(window: Window):
        window.state.library.new_path = lambda: tmp_path / "file" / "a.slot"
        window.state.send("Hello")
        yield lambda: window.chat.composer.editor.toPlainText() == "Hello"
        assert window.state.conversation.phase == "new"
        assert len(notices(window)) == 1

    run(write)


def test_what_could_not_be_saved_is_told_and_logged_at_the_end(
    run, slot: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = Session.close
    monkeypatch.setattr(Session, "close", lambda self: [*close(self), "The disk does not answer."])

    def read(window: Window):
        yield lambda: texts(window)

    run(read, slot)
    assert "dormouse: The disk does not answer.\n" in capsys.readouterr().err
    assert "The disk does not answer." in (log_folder() / "dormouse.log").read_text()


def test_what_draws_the_plot_can_be_imported_again(run, slot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []
    import_chart = plot._import_chart

    def fail_once(*_: object) -> None:
        tries.append(True)
        if len(tries) == 1:
            raise ImportError
        import_chart()

    def look(window: Window):
        problems: list[str] = []
        window.state.reports.problem_found.disconnect()
        window.state.reports.problem_found.connect(lambda text, _details: problems.append(text))
        yield lambda: problems
        window.state.shown.transcript_changed.emit()
        choose(window, "Prefill Plot")
        choose(window, "Prefill Plot")
        yield lambda: len(tries) == 2 and window._plot._is_ready
        assert len(problems) == 1

    monkeypatch.setattr(plot, "_import_chart", fail_once)
    run(look, slot)


def test_a_copy_that_fails_unforeseen_can_be_tried_again(run, slot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access, save_copy = os.access, SlotFile.save_copy
    failures = [ValueError("no sense")]

    def fail_once(self: SlotFile, path: Path) -> None:
        if failures:
            raise failures.pop()
        save_copy(self, path)

    def read(window: Window):
        problems: list[str] = []
        window.state.reports.problem_found.disconnect()
        window.state.reports.problem_found.connect(lambda text, _details: problems.append(text))
        drop(window, slot)
        yield lambda: problems
        assert texts(window) == []
        drop(window, slot)
        yield lambda: texts(window)
        assert len(problems) == 1
        assert failures == []

    monkeypatch.setattr(os, "access", lambda path, *a, **k: Path(path) != slot and access(path, *a, **k))
    monkeypatch.setattr(SlotFile, "save_copy", fail_once)
    run(read)
