"""Observable state, fed with events and without an engine."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.panels.plot import turn_bars
from app.state import starter_state
from app.state.background_work import BackgroundWork
from app.state.conversation_state import ConversationState
from app.state.outlook import outlook, spoken_seconds
from app.state.progress import Decode, Prefill, prefill_seconds
from app.state.starter_state import StarterState
from engine import events
from engine.errors import DormouseError
from engine.jobs import Job
from engine.slot.records import Message, Receipt
from engine.slot.transcript import Transcript

QUESTION = Message(1, None, "user", "Hello", 0.0)
PENDING = Message(2, 1, "assistant", "", 0.0, "pending")
RECEIPT = Receipt(2, 1, 500, 20, "live", "diverged", 2000.0, 10, 1000.0, "numpy", 0.0)


@pytest.fixture
def conversation(qapp: QApplication) -> ConversationState:
    conversation = ConversationState(qapp)
    conversation.begin_opening(Job(1, 1), Path("/a.slot"))
    conversation.handle(
        events.Opened(1, 1, path=Path("/a.slot"), transcript=Transcript((), None), receipts=(), models=(), damage=())
    )
    return conversation


def begin_turn(conversation: ConversationState) -> None:
    conversation.begin_turn(Job(2, 1))
    conversation.handle(events.TurnSaved(2, 1, Transcript((QUESTION, PENDING), 2), PENDING))


def test_a_turn_goes_through_its_phases(conversation: ConversationState) -> None:
    phases, grown = [], []
    conversation.phase_changed.connect(lambda: phases.append(conversation.phase))
    conversation.reply_grew.connect(lambda _message, text: grown.append(text))
    begin_turn(conversation)
    conversation.handle(events.PrefillStarted(2, 1, 20, 500, "live", "diverged"))
    conversation.handle(events.PrefillProgress(2, 1, 20, 520, 520))
    for text in ("Good", "", " day"):
        conversation.handle(events.TokenGenerated(2, 1, 2, 7, text))
    assert (conversation.n_tokens, conversation.reply_text) == (523, "Good day")
    reply = Message(2, 1, "assistant", "Good day", 0.0, "stop")
    conversation.handle(events.TurnFinished(2, 1, reply, (7, 7, 7), RECEIPT, None))
    assert phases == ["waiting", "prefill", "prefill", "decode", "idle"]
    assert grown == ["Good", " day"]
    assert conversation.transcript.path()[-1] == reply
    assert conversation.n_tokens == 530
    assert not conversation.is_busy
    (bar,) = turn_bars(conversation, str)
    assert (bar.cache_n, bar.prompt_n, bar.source) == (20, 500, "live")
    assert "differs from what the model saw" in bar.tooltip


def test_the_bar_names_the_conversation_that_gave(conversation: ConversationState) -> None:
    begin_turn(conversation)
    reply = Message(2, 1, "assistant", "Good day", 0.0, "stop")
    receipt = replace(RECEIPT, donor="a.slot")
    conversation.handle(events.TurnFinished(2, 1, reply, (7,), receipt, None))
    (bar,) = turn_bars(conversation, {"a.slot": "Tea for three"}.__getitem__)
    assert "“Tea for three”" in bar.tooltip


def test_a_turn_that_fails_keeps_its_words(conversation: ConversationState) -> None:
    begin_turn(conversation)
    conversation.handle(events.TokenGenerated(2, 1, 2, 7, "Good"))
    conversation.handle(events.Failed(2, 1, "No."))
    assert not conversation.is_busy
    last = conversation.transcript.path()[-1]
    assert (last.text, last.finish_reason) == ("Good", "failed")


def test_events_of_turns_that_are_over_are_dropped(conversation: ConversationState) -> None:
    begin_turn(conversation)
    conversation.handle(events.Failed(2, 1, "No."))
    conversation.handle(events.TokenGenerated(2, 1, 2, 7, "late"))
    assert conversation.phase == "idle"
    assert conversation.reply_text == ""


def test_the_outlook_says_what_the_next_turn_costs_and_why(conversation: ConversationState) -> None:
    assert outlook(conversation) == ""
    conversation.handle(events.Woken(3, 1, 600, 0, "restored", "none", ()))
    assert outlook(conversation) == "Awake: 600 tokens restored from the file, nothing to read again."
    conversation.handle(events.Woken(3, 1, 0, 600, "cold", "other_model", ()))
    said = outlook(conversation)
    assert said == "The next message makes the model read 600 tokens again: the stored state is another model's."
    conversation.receipts[2] = RECEIPT
    assert "600 tokens (about 2 s) again" in outlook(conversation)
    begin_turn(conversation)
    conversation.handle(events.PrefillStarted(2, 1, 0, 610, "cold", "other_model"))
    assert outlook(conversation).startswith("Reading 610 tokens")


def test_estimates() -> None:
    assert Prefill(100, 100, 500, started=0.0).seconds_left(1.0) is None
    assert Prefill(100, 300, 500, started=0.0).seconds_left(1.0) == 1.0
    assert Decode(1, 0.0).tokens_per_second(1.0) is None
    assert Decode(11, 0.0).tokens_per_second(2.0) == 5.0
    assert prefill_seconds(250, [RECEIPT]) == 1.0
    assert prefill_seconds(250, []) is None
    assert [spoken_seconds(s) for s in (0.2, 59, 130, 3900)] == ["1 s", "59 s", "2 min 10 s", "1 h 5 min"]


def test_tasks_tell_how_they_went(qtbot) -> None:
    parent, told = QObject(), []

    def work(progress, cancelled: threading.Event) -> str:
        progress(1 << 40, 1 << 41)
        if cancelled.wait(0.01):
            raise DormouseError("Stopped.")
        return "done"

    for cancel in (False, True):
        task = BackgroundWork(work, parent)
        task.progressed.connect(lambda *numbers: told.append(numbers))
        task.succeeded.connect(told.append)
        task.failed.connect(lambda text, _details: told.append(text))
        if cancel:
            task.cancel()
        task.start()
        qtbot.waitUntil(lambda: len(told) > 1)
        task.close()
        assert told == [(1 << 40, 1 << 41), "Stopped." if cancel else "done"]
        told.clear()


def test_tasks_tell_what_nobody_foresaw(qtbot) -> None:
    parent, told = QObject(), []

    def work(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    task = BackgroundWork(work, parent)
    task.failed.connect(lambda *told_now: told.append(told_now))
    task.start()
    qtbot.waitUntil(lambda: bool(told))
    ((text, details),) = told
    assert text == "Something went wrong inside Dormouse (ZeroDivisionError: by hand)."
    assert details.startswith("Traceback")


def test_fetching_the_starter_can_be_tried_again_after_any_failure(
    qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [OSError("no route"), ValueError("no sense"), DormouseError("No.")]

    def fetch(*_: object, **__: object) -> Path:
        if failures:
            raise failures.pop(0)
        return tmp_path

    monkeypatch.setattr(starter_state, "fetch_starter", fetch)
    parent = QObject()
    starter = StarterState(parent)
    for words in ("no route", "no sense", "No."):
        with qtbot.waitSignal(starter.failed) as told:
            starter.fetch()
        assert words in told.args[0]
        assert bool(told.args[1]) == (words != "No.")
        assert starter.progress is None
    with qtbot.waitSignal(starter.fetched) as told:
        starter.fetch()
    assert told.args == [tmp_path]


def test_work_that_never_ends_does_not_keep_the_window_open(qtbot) -> None:
    ended = threading.Event()
    task = BackgroundWork(lambda *_: ended.wait(), QObject())
    task.start()
    task.close(0.1)
    assert task.was_cancelled
    ended.set()
    task.close()
