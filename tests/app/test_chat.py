"""The whole program with a real model: a person's first hour."""

from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QFileDialog

from app.panels.plot import turn_bars
from app.state.app_state import AppState
from app.window import Window
from engine.errors import SlotBusyError
from engine.slot.file.slot_file import SlotFile
from engine.slot.records import Receipt
from tests.app.driving import answered, buttons, choose, drop, press

LONG = "Count with me. " + " ".join(f"{i} and then comes" for i in range(400))
N_TEMPLATE = 12  # tokens of a template around a message, and a little more


def write(window: Window, text: str) -> None:
    window.chat.composer.set_text(text)
    press(window, "Send")


def limit(state: AppState, *, max_tokens: int) -> None:
    state.settings.max_tokens = max_tokens
    state.settings.temperature = 0.0


def last_receipt(state: AppState) -> Receipt:
    leaf = state.conversation.transcript.leaf
    assert leaf is not None
    return state.conversation.receipts[leaf]


def texts(window: Window) -> list[str]:
    return [view.source for view in window.chat.transcript.views]


def messages_in(path: Path) -> list[str]:
    with SlotFile.open(path, read_only=True) as file:
        return [message.text for message in file.messages()]


def test_first_hour(run, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORMOUSE_STARTER", str(smollm2))
    copy = tmp_path / "story.slot"

    def first_start(window: Window):
        state = window.state
        limit(state, max_tokens=16)
        assert window.chat.is_welcoming
        (fetch,) = (name for name in buttons(window) if name.startswith("Fetch"))
        press(window, fetch)
        yield lambda: state.model.model is not None
        assert not window.chat.is_welcoming
        assert not list(state.library.entries())

        is_answered = answered(state)
        write(window, "Tell me about dormice.")
        yield is_answered
        assert last_receipt(state).source == "cold"
        assert texts(window)[-1] == state.conversation.transcript.path()[-1].text
        assert [entry.title for entry in state.library.entries()] == ["Tell me about dormice."]

        write(window, LONG)
        yield lambda: state.conversation.phase == "prefill"
        press(window, "Stop")
        yield lambda: not state.conversation.is_busy
        assert state.conversation.transcript.path()[-1].finish_reason == "cancelled"
        assert texts(window)[-2:] == [LONG, ""]

        state.settings.max_tokens = None
        choose(window, "Edit Last Message")
        write(window, "What do they eat? Tell me a long story.")
        yield lambda: state.conversation.decode and state.conversation.decode.n > 3
        press(window, "Stop")
        yield lambda: not state.conversation.is_busy
        assert state.conversation.transcript.path()[-1].finish_reason == "cancelled"
        assert LONG not in texts(window)

        state.settings.max_tokens = 16
        is_answered = answered(state)
        choose(window, "Regenerate")
        yield is_answered
        assert last_receipt(state).prompt_n == 0
        second = state.conversation.transcript.leaf
        press(window.chat.transcript.views[-1], "Version before")
        yield lambda: state.conversation.transcript.leaf != second
        assert state.conversation.transcript.path()[-1].finish_reason == "cancelled"
        press(window.chat.transcript.views[-1], "Version after")
        yield lambda: state.conversation.transcript.leaf == second

        choose(window, "Save As…")
        yield lambda: window.findChildren(QFileDialog)
        (dialog,) = window.findChildren(QFileDialog)
        dialog.fileSelected.emit(str(copy))
        dialog.close()
        yield lambda: state.conversation.path == copy
        choose(window, "New Chat")
        assert texts(window) == []
        yield lambda: messages_in(copy)
        choose(window, "Quit")

    run(first_start)
    assert LONG in messages_in(copy)
    before = len(messages_in(copy))

    def second_start(window: Window):
        state = window.state
        limit(state, max_tokens=16)
        assert not window.chat.is_welcoming
        drop(window, copy)
        assert texts(window) == []
        write(window, "And where do they sleep?")  # at once: it waits for the model and the state
        yield lambda: len(state.conversation.receipts) > 4 and not state.conversation.is_busy
        receipt = last_receipt(state)
        assert (receipt.source, receipt.reason) == ("restored", "none")
        assert receipt.prompt_n <= 6 + N_TEMPLATE
        bars = turn_bars(state.conversation, str)
        assert [bar.source for bar in bars] == ["cold", "live", "restored"]
        assert bars[-1].cache_n == receipt.cache_n
        QApplication.closeAllWindows()

    run(second_start)
    assert len(messages_in(copy)) == before + 2


def test_closing_in_the_middle_of_a_prefill_saves_everything(run, smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.slot"
    SlotFile.create(path).close()

    def close_early(window: Window):
        write(window, LONG)
        yield lambda: window.state.conversation.phase == "prefill"
        window.close()

    run(close_early, smollm2, path)
    assert messages_in(path) == [LONG, ""]

    def come_back(window: Window):
        yield lambda: window.state.conversation.woken is not None
        assert window.state.conversation.path == path
        assert texts(window) == [LONG, ""]

    run(come_back)


def test_a_sliding_window_is_gone_on_beyond(run, tiny_gemma3: Path, tmp_path: Path) -> None:
    path = tmp_path / "gemma.slot"
    SlotFile.create(path).close()

    def talk(window: Window):
        limit(window.state, max_tokens=8)
        for text in (LONG[:500], "And then?"):
            is_answered = answered(window.state)
            write(window, text)
            yield is_answered
        assert window.state.conversation.n_tokens > 3 * 24

    def go_on(window: Window):
        state = window.state
        limit(state, max_tokens=8)
        yield lambda: state.conversation.woken is not None
        is_answered = answered(state)
        write(window, "And then?")
        yield is_answered
        bars = turn_bars(state.conversation, str)
        assert [bar.source for bar in bars] == ["cold", "live", "restored"]
        assert bars[-1].prompt_n <= bars[-2].prompt_n + 2  # as much as the same words cost before

    run(talk, tiny_gemma3, path)
    run(go_on, path)


def test_a_reply_goes_on_while_another_conversation_is_shown(run, tiny_llama: Path, tmp_path: Path) -> None:
    talk, other = tmp_path / "talk.slot", tmp_path / "other.slot"
    for path in (talk, other):
        SlotFile.create(path).close()

    def look_away(window: Window):
        state = window.state
        state.settings.temperature = 0.0  # this model never ends by itself
        write(window, "Tell me a long story about dormice.")
        yield lambda: state.conversation.decode and state.conversation.decode.n > 3
        drop(window, other)
        assert texts(window) == []
        yield lambda: state.conversation.phase == "idle"
        assert texts(window) == []
        drop(window, talk)
        assert state.conversation.is_busy
        is_answered = answered(state)
        press(window, "Stop")
        yield is_answered
        assert texts(window)[-1] == state.conversation.transcript.path()[-1].text
        assert last_receipt(state).predicted_n > 3

        state.settings.max_tokens = 600  # some time to look away
        write(window, "Go on.")
        yield lambda: state.conversation.phase == "decode"
        choose(window, "New Chat")
        drop(window, talk)
        choose(window, "New Chat")
        yield lambda: not has_lock(talk)

    run(look_away, tiny_llama, talk)
    assert len(messages_in(talk)) == 4
    assert messages_in(talk)[-1]


def has_lock(path: Path) -> bool:
    try:
        messages_in(path)
    except SlotBusyError:
        return True
    return False


def test_after_a_switch_the_first_model_is_offered_and_the_cost_is_told(
    run, smollm2: Path, gemma3: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.slot"
    SlotFile.create(path).close()

    def switch(window: Window):
        state = window.state
        limit(state, max_tokens=4)
        is_answered = answered(state)
        write(window, "Hello.")
        yield is_answered
        drop(window, gemma3)
        yield lambda: state.model.model is not None and state.model.model.architecture == "gemma3"
        yield lambda: any(name.startswith("Load SmolLM2") for name in buttons(window))
        woken = state.conversation.woken
        assert woken is not None
        assert (woken.cache_n, woken.reason) == (0, "other_model")
        (back,) = (name for name in buttons(window) if name.startswith("Load SmolLM2"))
        press(window, back)
        yield lambda: state.conversation.woken is not None and state.conversation.woken.source == "restored"

    run(switch, smollm2, path)
