import pytest
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtWidgets import QApplication

from app.widgets.composer import Composer, can_be_edited


@pytest.fixture
def composer(qtbot) -> Composer:
    composer = Composer()
    qtbot.addWidget(composer)
    composer.resize(400, 60)
    composer.show()
    return composer


@pytest.fixture
def sent(composer: Composer) -> list[str]:
    texts: list[str] = []
    composer.submitted.connect(texts.append)
    return texts


def test_return_sends_and_shift_return_breaks_the_line(composer: Composer, sent: list[str], qtbot) -> None:
    qtbot.keyClicks(composer.editor, "one")
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(composer.editor, "two")
    assert sent == []
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    qtbot.keyClick(composer.editor, Qt.Key.Key_Enter, Qt.KeyboardModifier.KeypadModifier)
    assert sent == ["one\ntwo"] * 2


def test_nothing_is_sent_while_an_input_method_composes(composer: Composer, sent: list[str], qtbot) -> None:
    QApplication.sendEvent(composer.editor, QInputMethodEvent("かな", []))
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    assert sent == []
    done = QInputMethodEvent("", [])
    done.setCommitString("仮名")
    QApplication.sendEvent(composer.editor, done)
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    assert sent == ["仮名"]


def test_white_space_and_what_comes_while_busy_are_not_sent(composer: Composer, sent: list[str], qtbot) -> None:
    composer.set_text(" \n ")
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    composer.set_busy(True)
    composer.set_text("wait")
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    assert sent == []
    assert composer.editor.toPlainText() == "wait"


def test_editing_keeps_the_draft(composer: Composer, qtbot) -> None:
    cancelled = []
    composer.edit_cancelled.connect(lambda: cancelled.append(True))
    composer.set_text("draft")
    qtbot.keyClick(composer.editor, Qt.Key.Key_Escape)
    assert not cancelled
    composer.begin_editing("first")
    composer.begin_editing("second")
    assert composer.editor.toPlainText() == "second"
    qtbot.keyClick(composer.editor, Qt.Key.Key_Escape)
    assert cancelled
    composer.end_editing()
    assert composer.editor.toPlainText() == "draft"


def test_it_grows_to_eight_lines(composer: Composer) -> None:
    line = composer.editor.fontMetrics().lineSpacing()
    heights = []
    for n in (1, 3, 8, 30):
        composer.set_text("\n".join(["x"] * n))
        heights.append(composer.editor.height())
    assert heights[1] - heights[0] == 2 * line
    assert heights[2] - heights[0] == 7 * line
    assert heights[3] == heights[2]


def test_files_are_left_to_the_window(composer: Composer) -> None:
    data = QMimeData()
    data.setText("words")
    assert composer.editor.canInsertFromMimeData(data)
    data.setUrls([QUrl("file:///tmp/a.slot")])
    assert not composer.editor.canInsertFromMimeData(data)


def test_a_text_that_takes_long_to_lay_out_is_not_edited() -> None:
    assert can_be_edited("a\n" * 10_000)
    assert can_be_edited("")
    assert not can_be_edited("a\n" * 60_000)
    assert not can_be_edited("a" * 50_000)
