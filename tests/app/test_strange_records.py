"""Records that no Dormouse wrote: the window shows what it can, and no word or number ends it."""

import math
import os
import random
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QSize
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QApplication, QListView
from pytestqt.qtbot import QtBot

from app.crash import CrashReporter
from app.library import LibraryEntry
from app.panels.outlook import OutlookPanel
from app.panels.plot import turn_bars
from app.state.app_state import AppState
from app.state.conversation_state import ConversationState
from app.state.outlook import outlook
from app.state.receipts import makes_sense
from app.widgets.entry_delegate import EntryDelegate
from app.widgets.painting import nothing, while_painting
from app.widgets.turn_bar import TurnBar
from app.window import Window
from engine import events
from engine.paths import library_folder
from engine.slot.records import Message, ModelIdentity, Receipt
from engine.slot.transcript import Transcript
from tests.slot_samples import write_conversation

RECEIPT = Receipt(2, 1, 10, 20, "live", "none", 100.0, 5, 50.0, "numpy", 0.0)
STRANGE: dict[str, list[Any]] = {
    "source": ["pwned", "", None, 3],
    "reason": ["pwned", None],
    "prompt_n": [-1, 1 << 62, "7", 1.5, None, True],
    "cache_n": [-1, 1 << 62, "7", None],
    "predicted_n": [-1, "7"],
    "prompt_ms": [math.nan, math.inf, -1.0, "7", None, 1e300],
    "predicted_ms": [math.nan, "7"],
    "kernels": [None, 7],
    "donor": [7],
}
CASES = [(name, value) for name, values in STRANGE.items() for value in values]
MESSAGES = (Message(1, None, "user", "Hello?", 0.0), Message(2, 1, "assistant", "Hello.", 0.0, "stop"))


def opened(receipt: Receipt, **other: Any) -> events.Opened:
    given: dict[str, Any] = {"models": (), "damage": ()} | other
    return events.Opened(1, 1, None, Transcript(MESSAGES, 2), (receipt,), **given)


def test_a_sound_receipt_makes_sense() -> None:
    assert makes_sense(RECEIPT)
    assert makes_sense(replace(RECEIPT, prompt_ms=0, donor="a.slot"))


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_receipt_that_makes_no_sense_is_none(qapp: QApplication, name: str, value: Any) -> None:
    conversation = ConversationState(qapp)
    conversation.handle(opened(replace(RECEIPT, **{name: value})))
    assert conversation.receipts == {}
    assert turn_bars(conversation, str) == []
    assert conversation.n_tokens == 0
    assert conversation.tokens_per_second is None
    assert outlook(conversation) == ""
    conversation.deleteLater()


@pytest.mark.qt_no_exception_capture
def test_a_bar_of_unknown_origin_is_painted(qtbot: QtBot) -> None:
    from app.widgets.turn_plot import TurnPlot  # noqa: PLC0415 - takes half a second

    plot = TurnPlot()
    qtbot.addWidget(plot)
    bars = [TurnBar("1", 5, 5, 1.0, source, "none", "tip") for source in ("pwned", "live", "cold", "restored")]
    plot.set_turns(bars)
    plot.show()
    assert not plot.grab().isNull()


@pytest.mark.qt_no_exception_capture
def test_a_fault_in_painting_is_told_a_few_times_and_ends_nothing(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.widgets.turn_plot import TurnPlot  # noqa: PLC0415

    reporter = CrashReporter(tmp_path)
    reporter.install()
    try:
        plot = TurnPlot()
        qtbot.addWidget(plot)
        plot.set_turns([TurnBar("1", 5, 5, None, "live", "none", "tip")])
        plot.show()
        for _ in range(20):
            plot.grab()
    finally:
        reporter.uninstall()
    assert 1 <= (tmp_path / "dormouse.log").read_text().count("TypeError: ") <= 30
    for dialog in QApplication.topLevelWidgets():
        if type(dialog).__name__ == "ProblemDialog":
            dialog.close()


def test_what_is_painted_instead_is_of_the_right_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *what: told.append(what))

    @while_painting(QSize)
    def fail() -> QSize:
        raise ValueError("no sense")

    assert fail() == QSize()
    assert told[0][0] is ValueError
    assert nothing() is None


@given(st.text(max_size=200))
@settings(max_examples=20, deadline=None)
def test_any_title_is_painted(title: str) -> None:
    QApplication.instance() or QApplication([])
    view, model = QListView(), QStandardItemModel()
    model.appendRow(QStandardItem(title))  # without a date: not even that ends it
    view.setItemDelegate(EntryDelegate(view))
    view.setModel(model)
    assert not view.grab().isNull()


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "/" + "a/" * 2500, "/\0", ""])
def test_a_model_wherever_it_was_is_told(run, path: str) -> None:
    def look(window: Window):
        state: AppState = window.state
        model = ModelIdentity(1, "f", "llama", "m", path, "t", "c", "f16", "numpy", {})
        state.conversation.handle(opened(RECEIPT, models=(model,)))
        state.model.changed.emit()
        (panel,) = window.findChildren(OutlookPanel)
        yield panel.isVisible
        assert "any more" in panel.text
        assert len(panel.text) <= 600
        state.open_conversation(Path(path or "/nowhere"))
        panel.activated.emit()

    run(look)


def spoil(path: Path, *statements: str) -> None:
    """Write a slot file and change it past Dormouse."""
    write_conversation(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema=ON")
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_a_bad_file_in_the_library_is_listed_and_harms_no_other(run) -> None:
    folder = library_folder()
    good = folder / "good.slot"
    write_conversation(good)
    (folder / "noise.slot").write_bytes(random.Random(1).randbytes(50_000))
    (folder / "nothing.slot").write_bytes(b"")
    (folder / "zeros.slot").write_bytes(bytes(50_000))
    (folder / "cut.slot").write_bytes(good.read_bytes()[:40_000])
    os.mkfifo(folder / "pipe.slot")
    spoil(folder / "words.slot", "CREATE TABLE extra (id TEXT PRIMARY KEY)", "INSERT INTO extra VALUES ('one')")
    spoil(folder / "names.slot", 'CREATE TABLE extra (id INTEGER PRIMARY KEY, "a"", ""b" TEXT)')
    spoil(folder / "gone.slot", "DROP TABLE message")

    def look(window: Window):
        state: AppState = window.state
        problems: list[str] = []
        state.reports.problem_found.connect(lambda text, _details: problems.append(text))

        def listed() -> dict[str, LibraryEntry]:
            return {Path(entry.path).stem: entry for entry in state.library.entries()}

        yield lambda: listed()["good"].title != "good" and listed()["gone"].damaged and listed()["cut"].damaged
        names = {"good", "noise", "nothing", "zeros", "cut", "words", "names", "gone"}
        assert set(listed()) == names
        state.open_conversation(good)
        yield lambda: window.chat.transcript.views
        for name in names - {"good"}:
            state.open_conversation(folder / f"{name}.slot")
            yield lambda: state.conversation.phase in ("new", "idle") and not state._open._closing
        state.open_conversation(good)
        yield lambda: state.conversation.path == good and window.chat.transcript.views
        assert problems == []

    run(look)
