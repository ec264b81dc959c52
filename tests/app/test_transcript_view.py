import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtWidgets import QApplication, QToolButton

from app.widgets.message_view import MessageView
from app.widgets.transcript_view import TranscriptView

PARAGRAPH = "Many words, again and again. " * 10 + "\n\n"


@pytest.fixture
def transcript(qtbot) -> TranscriptView:
    texts = {1: ("user", "Hello"), 2: ("assistant", PARAGRAPH * 5)}
    transcript = TranscriptView(lambda id: MessageView(id, *texts[id]))
    qtbot.addWidget(transcript)
    transcript.resize(400, 300)
    transcript.show()
    transcript.set_messages([1, 2])
    qtbot.waitUntil(lambda: transcript.verticalScrollBar().maximum() > 0)
    return transcript


def is_at_bottom(transcript: TranscriptView) -> bool:
    bar = transcript.verticalScrollBar()
    return bar.value() == bar.maximum()


def grow(transcript: TranscriptView, qtbot) -> None:
    before = transcript.verticalScrollBar().maximum()
    transcript.views[-1].grow(PARAGRAPH)
    qtbot.waitUntil(lambda: transcript.verticalScrollBar().maximum() > before)


def turn_wheel(transcript: TranscriptView, steps: int) -> None:
    place = QPointF(transcript.viewport().rect().center())
    event = QWheelEvent(
        place,
        place,
        QPoint(),
        QPoint(0, 120 * steps),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(transcript.viewport(), event)


def test_it_follows_only_while_the_reader_is_at_the_bottom(transcript: TranscriptView, qtbot) -> None:
    qtbot.waitUntil(lambda: is_at_bottom(transcript))
    grow(transcript, qtbot)
    assert is_at_bottom(transcript)
    turn_wheel(transcript, 1)
    place = transcript.verticalScrollBar().value()
    assert not is_at_bottom(transcript)
    grow(transcript, qtbot)
    assert transcript.verticalScrollBar().value() == place
    turn_wheel(transcript, -100)
    grow(transcript, qtbot)
    assert is_at_bottom(transcript)


def test_growing_text_is_rendered_in_batches_and_copied_exactly(transcript: TranscriptView, qtbot) -> None:
    view = transcript.views[-1]
    source = "Some *words*\n\n```python\nx = 1\n```"
    view.set_text("")
    for character in source:
        view.grow(character)
    assert view.source == source
    (copy,) = (b for b in view.findChildren(QToolButton) if b.accessibleName().startswith("Copy"))
    copy.click()
    assert QGuiApplication.clipboard().text() == source


def test_versions_show_only_where_there_are_several(transcript: TranscriptView) -> None:
    view = transcript.views[-1]
    asked: list[tuple[int, int]] = []
    view.version_requested.connect(lambda *wish: asked.append(wish))
    before, after = (
        next(b for b in view.findChildren(QToolButton) if b.accessibleName() == f"Version {w}")
        for w in ("before", "after")
    )
    assert not before.isVisible()
    view.set_versions(2, 2)
    assert before.isVisible()
    assert not after.isEnabled()
    before.click()
    assert asked == [(2, -1)]
