"""The state of the whole window with a real session: opening, switching, deleting, in any order."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event as Flag

import pytest
from PySide6.QtWidgets import QApplication

from app.library import Library
from app.settings import Settings
from app.state.app_state import AppState
from app.state.notice import Notice
from engine.jobs import Job
from engine.paths import library_folder
from engine.session import Session
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.slot_samples import write_conversation
from tests.tiny_gguf import tokenizer_metadata, write_llama

SOON = 20_000  # milliseconds


@pytest.fixture(name="paths")
def _paths() -> list[Path]:
    """Five conversations in the library."""
    library_folder().mkdir(parents=True, exist_ok=True)
    paths = [library_folder() / f"{name}.slot" for name in "abcde"]
    for path in paths:
        write_conversation(path)
    return paths


@pytest.fixture(name="state")
def _state(qtbot) -> Iterator[AppState]:
    state = AppState(Settings(), Library(library_folder()))
    yield state
    state.close()


@pytest.fixture(name="told")
def _told(state: AppState) -> list[str]:
    """What the window would tell."""
    told: list[str] = []
    state.reports.noticed.connect(lambda notice: told.append(notice.text))
    state.reports.problem_found.connect(lambda text, details: told.append(f"{text}\n{details}"))
    return told


class Busy:
    """Keeps the engine's thread busy, as a long reply does."""

    def __init__(self, session: Session) -> None:
        self._gate = Flag()
        entered = Flag()

        def wait(_: Job) -> None:
            entered.set()
            self._gate.wait()

        session._submit(None, wait)
        assert entered.wait(SOON)

    def end(self) -> None:
        self._gate.set()


@pytest.fixture(name="busy")
def _busy(state: AppState) -> Iterator[Busy]:
    busy = Busy(state._session)
    yield busy
    busy.end()


def is_quiet(state: AppState) -> bool:
    """Whether all files are closed but that of the conversation that is shown."""
    shown = state.conversation
    return state._open.states == [shown] * (shown.id is not None) and shown.phase in ("new", "idle")


def pretend_a_model(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the state wake conversations, which fails in the session for want of a real one."""
    monkeypatch.setattr(state.model, "model", object())


@pytest.mark.timeout(120)
def test_several_files_at_once(qtbot, state: AppState, told: list[str], paths: list[Path], monkeypatch) -> None:
    pretend_a_model(state, monkeypatch)
    state.open_files(paths)
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert state.conversation.path == paths[-1]
    assert len(state.conversation.transcript.messages) > 0
    qtbot.waitUntil(lambda: len(told) == 1, timeout=SOON)
    assert told == ["No model is loaded."]  # what waking the shown one said


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(4))
def test_a_random_walk(qtbot, state: AppState, told: list[str], paths: list[Path], seed: int, monkeypatch) -> None:
    pretend_a_model(state, monkeypatch)
    dice, removed = random.Random(seed), set()
    busy: Busy | None = None

    def open_one() -> None:
        path = dice.choice(paths)
        if path.exists():
            removed.discard(path)
            state.open_conversation(path)

    def remove() -> None:
        path = dice.choice(paths)
        if path.exists():
            removed.add(path)
            state.remove_conversation(path)

    def send() -> None:
        if not state.conversation.is_busy:
            state.send("Hello?")

    def block() -> None:
        nonlocal busy
        if busy is None:
            busy = Busy(state._session)
        else:
            busy.end()
            busy = None

    def look() -> None:
        qtbot.wait(dice.choice((1, 5, 20)))

    def save_as() -> None:
        if not state.conversation.is_busy:
            state.save_as(dice.choice(paths).with_suffix(f".{dice.randrange(3)}.slot"))

    def stop() -> None:
        state.stop()

    steps = [open_one] * 10 + [look] * 5 + [state.new_conversation, send, send, stop, save_as, block]
    for step in range(300):
        (remove if step % 75 == 74 else dice.choice(steps))()
        QApplication.processEvents()
    if busy is not None:
        busy.end()
    state.new_conversation()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert [text for text in told if "closed" in text or "Traceback" in text] == []
    assert [path for path in paths if not path.exists()] == sorted(removed)
    for path in library_folder().glob("*.slot"):
        SlotFile.open(path).close()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("busy")
def test_what_is_to_be_closed_can_be_taken_up_while_the_model_is_busy(
    qtbot, state: AppState, told: list[str], paths: list[Path]
) -> None:
    for path in (paths[0], paths[1], paths[0]):
        state.open_conversation(path)
        qtbot.waitUntil(lambda path=path: state.conversation.path == path, timeout=SOON)
        qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    assert told == []


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("busy")
def test_stop_takes_a_message_out_of_the_queue_at_once(qtbot, state: AppState, paths: list[Path]) -> None:
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    n_tokens = state.conversation.n_tokens
    state.send("Hello?")
    assert state.conversation.phase == "waiting"
    state.stop()
    qtbot.waitUntil(lambda: not state.conversation.is_busy, timeout=SOON)
    user, reply = state.conversation.transcript.path()[-2:]
    assert (user.text, reply.text, reply.finish_reason) == ("Hello?", "", "cancelled")
    assert state.conversation.n_tokens == n_tokens


def holding(words: bytes) -> list[Path]:
    """Return the files of the person's, of whatever kind, in which words stand."""
    return [path for path in Path.home().rglob("*") if path.is_file() and words in path.read_bytes()]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_open", [True, False])
def test_nothing_is_left_of_a_conversation_that_was_deleted(
    qtbot, state: AppState, paths: list[Path], busy: Busy, is_open: bool
) -> None:
    deleted = paths[0].rename(paths[0].with_name("an old secret.slot"))
    for path in (deleted, paths[1]):
        state.open_conversation(path)
        qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    busy.end()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    state._session._donors._index.update(library_folder(), but=paths)
    if is_open:
        state.open_conversation(deleted)
        qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    state.settings.save()
    state.library.entries()
    assert {path.name for path in holding(b"an old secret")} >= {"settings.json", "titles.json", "prefixes.sqlite"}
    state.remove_conversation(deleted)
    qtbot.waitUntil(lambda: not deleted.exists() and is_quiet(state), timeout=SOON)
    assert holding(b"an old secret") == []
    assert state.settings.recent == [str(paths[1])]


@pytest.mark.timeout(120)
def test_a_wish_to_delete_belongs_to_the_open_conversation(
    qtbot, state: AppState, busy: Busy, paths: list[Path]
) -> None:
    copy = paths[0].with_name("copy.slot")
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    state.save_as(copy)
    state.remove_conversation(paths[0])
    busy.end()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert not paths[0].exists()
    write_conversation(paths[0])  # another one of the same name, some day
    for path in (paths[0], copy, paths[1]):
        state.open_conversation(path)
        qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert paths[0].exists()
    assert copy.exists()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("busy")
def test_whoever_opens_again_what_is_being_deleted_keeps_it(qtbot, state: AppState, paths: list[Path]) -> None:
    for path in paths[:2]:
        state.open_conversation(path)
        qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    state.remove_conversation(paths[0])
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: state.conversation.path == paths[0], timeout=SOON)
    state.new_conversation()
    qtbot.wait(50)
    assert paths[0].exists()


@pytest.mark.timeout(120)
def test_a_damaged_file_that_was_opened_can_be_deleted(qtbot, state: AppState, told: list[str], busy: Busy) -> None:
    library_folder().mkdir(parents=True, exist_ok=True)
    junk = library_folder() / "junk.slot"
    junk.write_bytes(b"junk" * 10_000)
    state.open_conversation(junk)
    state.send("Hello?")
    state.remove_conversation(junk)
    busy.end()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert not junk.exists()


@pytest.mark.timeout(120)
def test_a_title_that_can_not_be_noted_is_reported_and_no_more(
    qtbot, state: AppState, told: list[str], paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(state.library, "note_title", fail)
    changes: list[bool] = []
    state.files.changed.connect(lambda: changes.append(True))
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: bool(changes), timeout=SOON)
    assert "ZeroDivisionError" in told[0]
    assert state.conversation.phase == "idle"


@pytest.mark.timeout(120)
def test_a_file_is_deleted_though_it_could_not_be_saved_elsewhere(
    qtbot, state: AppState, told: list[str], busy: Busy, paths: list[Path]
) -> None:
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    state.save_as(library_folder())
    state.remove_conversation(paths[0])
    busy.end()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert not paths[0].exists()
    assert len(told) == 1


@pytest.mark.timeout(120)
def test_a_file_is_deleted_though_the_program_ends(qtbot, state: AppState, busy: Busy, paths: list[Path]) -> None:
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: state.conversation.phase == "idle", timeout=SOON)
    state.send("Hello?")
    state.remove_conversation(paths[0])
    assert paths[0].exists()
    busy.end()
    state.close()
    assert not paths[0].exists()


@pytest.mark.timeout(120)
def test_300_switches_with_a_model(
    qtbot, state: AppState, told: list[str], paths: list[Path], smollm2: Path, tmp_path: Path
) -> None:
    dice = random.Random(0)
    with qtbot.waitSignal(state.model.loaded, timeout=SOON):
        state.load_model(write_llama(tmp_path / "tiny.gguf", tokenizer_metadata(smollm2)))
    for _ in range(300):
        state.open_files(dice.sample(paths, dice.choice((1, 1, 3))))
        if dice.random() < 0.1:
            state.send("Hello?")
        if dice.random() < 0.7:
            qtbot.wait(dice.choice((0, 1, 5, 20)))
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert [text for text in told if "closed" in text or "Traceback" in text] == []


@pytest.mark.timeout(120)
def test_a_file_that_lost_messages_is_repaired_on_wish(qtbot, state: AppState, paths: list[Path]) -> None:
    notices: list[Notice] = []
    state.reports.noticed.connect(notices.append)
    with closing(sqlite3.connect(paths[0], isolation_level=None)) as connection:
        connection.execute("DELETE FROM message WHERE id = 8")
    state.open_conversation(paths[0])
    qtbot.waitUntil(lambda: bool(notices), timeout=SOON)
    assert (notices[0].text, notices[0].kind) == ("Messages are missing or older than they should be.", "error")
    assert [notice.action and notice.action.label for notice in notices] == [None] * (len(notices) - 1) + ["Repair"]
    assert notices[-1].action is not None

    state.new_conversation()  # the notice is still there
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    n_told = len(notices)
    notices[-1].action.run()
    qtbot.waitUntil(lambda: len(notices) == 2 * n_told, timeout=SOON)
    assert state.conversation.path == paths[0]

    notices[-1].action.run()
    qtbot.waitUntil(lambda: len(notices) > 2 * n_told, timeout=SOON)
    assert notices[-1].text.endswith("the damaged one is kept as a.slot.damaged.")
    assert notices[-1].action is None
    assert len(state.conversation.transcript.messages) == 16
    state.send("Hello?")
    qtbot.waitUntil(lambda: not state.conversation.is_busy, timeout=SOON)
    assert state.conversation.transcript.user_messages()[-1].text == "Hello?"
    assert state.conversation.unsaved == ""
    state.new_conversation()
    qtbot.waitUntil(lambda: is_quiet(state), timeout=SOON)
    assert verify(paths[0]) == []
