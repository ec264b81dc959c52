"""The prefill plot: what it shows, what it does when nobody looks, and how it reads with many turns."""

import subprocess
import sys

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage, QPalette, QWheelEvent
from PySide6.QtWidgets import QApplication, QLabel, QToolTip
from pytestqt.qtbot import QtBot

from app.widgets.foreign_words import tool_tip
from app.widgets.prefill_plot import PrefillPlot, TurnBar
from app.widgets.turn_plot import TurnPlot
from tests.clock import best_of_three

READ, REUSED = "#ff0000", "#404040"


def turn(number: int, *, cache_n: int, prompt_n: int, source: str = "live") -> TurnBar:
    return TurnBar(str(number), cache_n, prompt_n, 5.0 * prompt_n, source, "none", f"Turn {number}")


def conversation(n_turns: int, *, restored: int = -1) -> list[TurnBar]:
    first = turn(1, cache_n=0, prompt_n=500, source="cold")
    return [first] + [
        turn(i + 1, cache_n=500 + 100 * i, prompt_n=20, source="restored" if i == restored else "live")
        for i in range(1, n_turns)
    ]


@pytest.fixture
def widget(qtbot: QtBot) -> PrefillPlot:
    plot = PrefillPlot()
    qtbot.addWidget(plot)
    plot.resize(480, 300)
    palette = QPalette(QColor("#202020"), QColor("#000000"))
    for role, color in (("Base", "#000000"), ("Text", "#ffffff"), ("WindowText", "#ffffff"), ("Highlight", READ)):
        palette.setColor(getattr(QPalette.ColorRole, role), QColor(color))
    plot.setPalette(palette)
    return plot


def chart(widget: PrefillPlot, qtbot: QtBot) -> TurnPlot:
    widget.show()
    qtbot.waitUntil(lambda: widget.plot is not None)
    assert widget.plot is not None
    return widget.plot


def center(plot: TurnPlot, index: int, tokens: float) -> QPoint:
    return plot.mapFromScene(plot.getViewBox().mapViewToScene(QPointF(index, tokens)))


def color(plot: TurnPlot, index: int, tokens: float) -> str:
    image: QImage = plot.grab().toImage()
    return image.pixelColor(center(plot, index, tokens)).name()


def inks(plot: TurnPlot, index: int, low: float, high: float) -> set[str]:
    image, bottom, top = plot.grab().toImage(), center(plot, index, low), center(plot, index, high)
    return {image.pixelColor(bottom.x(), y).name() for y in range(top.y(), bottom.y())}


def move(plot: TurnPlot, place: QPoint, qtbot: QtBot) -> None:
    qtbot.mouseMove(plot.viewport(), place)


def test_importing_it_leaves_pyqtgraph_alone() -> None:
    code = "import sys, app.widgets.prefill_plot; sys.exit('pyqtgraph' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_turns_it_says_what_will_be_here(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.show()
    (label,) = [label for label in widget.findChildren(QLabel) if label.isVisible()]
    assert "Nothing read yet" in label.text()
    assert widget.plot is None
    widget.set_turns(conversation(3))
    qtbot.waitUntil(lambda: not label.isVisible())
    widget.set_turns([])
    qtbot.waitUntil(label.isVisible)


def test_bars_show_what_was_reused_and_what_was_read(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns([turn(1, cache_n=0, prompt_n=500, source="cold"), turn(2, cache_n=300, prompt_n=300)])
    plot = chart(widget, qtbot)
    assert color(plot, 0, 250) == READ
    assert color(plot, 1, 150) == REUSED
    assert color(plot, 1, 450) == READ
    assert color(plot, 0, 700) not in {READ, REUSED}


def test_restored_turns_are_hatched_not_only_colored(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(4, restored=2))
    plot = chart(widget, qtbot)
    assert inks(plot, 1, 100, 500) == {REUSED}
    assert len(inks(plot, 2, 100, 500)) > 1


def test_a_dashed_line_stands_before_a_restored_turn(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(4))
    plot = chart(widget, qtbot)
    assert len(inks(plot, 1.5, 100, 500)) == 1
    widget.set_turns(conversation(4, restored=2))
    qtbot.waitUntil(lambda: len(inks(plot, 1.5, 100, 500)) == 2)


def test_a_few_tokens_read_can_still_be_seen(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns([turn(1, cache_n=100_000, prompt_n=1)])
    plot = chart(widget, qtbot)
    assert READ in inks(plot, 0, 90_000, 110_000)


def test_hovering_shows_the_receipt(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(5))
    plot = chart(widget, qtbot)
    move(plot, center(plot, 3, 200), qtbot)
    assert plot.highlighted == 3
    assert QToolTip.text() == tool_tip("Turn 4")
    move(plot, QPoint(2, 2), qtbot)
    assert plot.highlighted is None
    move(plot, center(plot, 2, 200), qtbot)
    QApplication.sendEvent(plot, QEvent(QEvent.Type.Leave))
    assert plot.highlighted is None


def test_nothing_is_drawn_while_it_is_hidden(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(5))
    qtbot.wait(20)
    assert widget.plot is None
    plot = chart(widget, qtbot)
    assert list(plot.turns_in_view) == list(range(5))
    widget.hide()
    widget.set_turns(conversation(9))
    qtbot.wait(20)
    assert len(plot.turns_in_view) == 5
    widget.show()
    qtbot.waitUntil(lambda: len(plot.turns_in_view) == 9)


def test_many_turns_show_the_last_and_on_a_double_click_all(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(500))
    plot = chart(widget, qtbot)
    assert list(plot.turns_in_view) == list(range(470, 500))
    qtbot.mouseDClick(plot.viewport(), Qt.MouseButton.LeftButton, pos=center(plot, 480, 100))
    assert list(plot.turns_in_view) == list(range(500))
    qtbot.mouseDClick(plot.viewport(), Qt.MouseButton.LeftButton, pos=center(plot, 80, 100))
    assert list(plot.turns_in_view) == list(range(470, 500))


def test_new_turns_come_into_view_unless_the_reader_is_elsewhere(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(100))
    plot = chart(widget, qtbot)
    widget.set_turns(conversation(101))
    qtbot.waitUntil(lambda: plot.turns_in_view[-1] == 100)
    plot.getViewBox().setXRange(10, 20, padding=0)
    widget.set_turns(conversation(102))
    qtbot.wait(20)
    assert list(plot.turns_in_view) == list(range(10, 21))


def test_the_wheel_goes_along_the_turns(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(100))
    plot = chart(widget, qtbot)
    place = QPointF(center(plot, 85, 100))
    wheel = QWheelEvent(
        place,
        plot.viewport().mapToGlobal(place),
        QPoint(),
        QPoint(0, 240),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(plot.viewport(), wheel)
    assert 5 < len(plot.turns_in_view) < 30
    assert plot.getViewBox().viewRange()[1][0] == 0


@pytest.mark.clock
def test_five_hundred_turns_are_drawn_quickly(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(500))
    plot = chart(widget, qtbot)
    qtbot.mouseDClick(plot.viewport(), Qt.MouseButton.LeftButton, pos=center(plot, 480, 100))
    plot.grab()

    def draw() -> None:
        plot.set_turns(conversation(500))
        plot.grab()

    assert best_of_three(draw) < 0.05


def test_colors_follow_the_palette(widget: PrefillPlot, qtbot: QtBot) -> None:
    widget.set_turns(conversation(2))
    plot = chart(widget, qtbot)
    palette = QPalette(widget.palette())
    palette.setColor(QPalette.ColorRole.Highlight, QColor("#00ff00"))
    palette.setColor(QPalette.ColorRole.Window, QColor("#fafafa"))
    widget.setPalette(palette)
    assert color(plot, 0, 250) == "#00ff00"
    assert plot.grab().toImage().pixelColor(1, 1).name() == "#fafafa"


@pytest.mark.parametrize(
    ("ms", "text"), [(0.4, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (99_900, "99.9 s"), (660_000, "11 min")]
)
def test_times_are_short(ms: float, text: str) -> None:
    assert TurnBar("1", 0, 1, ms, "cold", "new_chat", "").duration == text


def test_screen_readers_hear_the_last_turn(widget: PrefillPlot) -> None:
    widget.set_turns(conversation(3))
    assert widget.accessibleName() == "Prefill plot"
    assert widget.accessibleDescription() == "3 turns; the last one: Turn 3"
