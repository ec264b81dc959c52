"""The dialog of the settings: what it shows, takes, refuses, and what becomes of it."""

import json
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QAction, QKeySequence, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QScrollArea, QStatusBar, QWidget

from app.settings import DECLARATIONS, Settings
from app.widgets.notice_bar import NoticeBar
from app.widgets.setting_editors import SettingEditor
from app.widgets.settings_dialog import SettingsDialog
from app.window import Window
from engine.kernels import choice
from engine.paths import config_folder
from tests.app.driving import choose, press

SHOWN = [declaration for declaration in DECLARATIONS if declaration.group]
LABELS = {declaration.name: declaration.label for declaration in SHOWN}


@pytest.fixture
def dialog(qtbot) -> SettingsDialog:
    return shown_dialog(qtbot, Settings())


def shown_dialog(qtbot, settings: Settings) -> SettingsDialog:
    dialog = SettingsDialog(SHOWN, vars(settings))
    qtbot.addWidget(dialog)
    dialog.show()
    return dialog


def editor(dialog: SettingsDialog, name: str) -> SettingEditor:
    (found,) = (w for w in dialog.findChildren(QWidget) if w.accessibleName() == LABELS[name])
    return found


def type_into(widget: QWidget, text: str) -> None:
    """Replace the text of a control by typing."""
    widget.setFocus()
    QTest.keyClick(widget, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(widget, Qt.Key.Key_Delete)
    QTest.keyClicks(widget, text)


def changes(dialog: SettingsDialog) -> list[dict[str, object]]:
    """Return what the dialog tells from now on."""
    told: list[dict[str, object]] = []
    dialog.changed.connect(told.append)
    return told


def open_dialog(window: Window) -> SettingsDialog:
    choose(window, "Settings…")
    (dialog,) = (d for d in window.findChildren(SettingsDialog) if d.isVisible())
    return dialog


def saved() -> dict[str, object]:
    values: dict[str, object] = json.loads((config_folder() / "settings.json").read_text())
    return values


def test_every_setting_is_shown_under_its_heading(dialog: SettingsDialog) -> None:
    texts = [label.text() for label in dialog.findChildren(QLabel)]
    assert [text for text in texts if text in {d.group for d in SHOWN}] == ["Replies", "Model", "Conversations' state"]
    for declaration in SHOWN:
        assert declaration.label in texts
        assert declaration.hint in texts
        assert editor(dialog, declaration.name).accessibleDescription() == declaration.hint


def test_every_allowed_kind_of_value_is_shown_and_read_back(qtbot) -> None:
    values = {
        "temperature": 1.25,
        "top_k": 0,
        "top_p": 0.5,
        "max_tokens": 1,
        "system_prompt": "Be brief.\nBe kind.",
        "n_ctx": 1 << 24,
        "kv_type": "q8_0",
        "kernels": "numpy",
        "n_threads": 3,
        "checkpoint_interval": 64,
        "memory_budget": 0,
        "disk_budget": 10,
    }
    assert values.keys() == LABELS.keys()
    dialog = shown_dialog(qtbot, Settings(**values))
    assert {name: editor(dialog, name).setting() for name in values} == values
    dialog.restore_defaults()
    assert {name: editor(dialog, name).setting() for name in values} == {d.name: d.default for d in SHOWN}


def test_what_is_typed_and_chosen_is_told_at_ok(dialog: SettingsDialog) -> None:
    told = changes(dialog)
    type_into(editor(dialog, "temperature"), "0.3")
    type_into(editor(dialog, "max_tokens"), "200")
    type_into(editor(dialog, "system_prompt"), "Be brief.")
    QTest.keyClick(editor(dialog, "kv_type"), Qt.Key.Key_End)
    type_into(editor(dialog, "n_ctx"), "4096")
    assert told == []
    QTest.keyClick(editor(dialog, "n_ctx"), Qt.Key.Key_Return)
    assert told == [
        {"temperature": 0.3, "max_tokens": 200, "system_prompt": "Be brief.", "n_ctx": 4096, "kv_type": "q4_0"}
    ]
    assert not dialog.isVisible()


def test_nothing_changed_is_nothing_told(qtbot) -> None:
    dialog = shown_dialog(qtbot, Settings(temperature=0.123456, system_prompt="a\r\nb"))
    told = changes(dialog)
    press(dialog, "OK")
    assert told == []


@pytest.mark.parametrize("way", ["button", "key"])
def test_cancel_forgets(dialog: SettingsDialog, way: str) -> None:
    told = changes(dialog)
    type_into(editor(dialog, "top_k"), "7")
    if way == "button":
        press(dialog, "Cancel")
    else:
        QTest.keyClick(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()
    assert told == []


@pytest.mark.parametrize(
    ("name", "typed", "taken"),
    [
        ("checkpoint_interval", "6", 64),
        ("top_k", "1001", 100),
        ("top_k", "-5", 5),
        ("temperature", "hot", 0.0),
        ("temperature", "2.5", 2.0),
        ("top_p", "0", 0.01),
        ("n_ctx", "", None),
        ("n_ctx", "0", None),
        ("n_threads", "many", None),
    ],
)
def test_only_allowed_values_are_taken(dialog: SettingsDialog, name: str, typed: str, taken: object) -> None:
    (declaration,) = (d for d in SHOWN if d.name == name)
    control = editor(dialog, name)
    type_into(control, typed)
    assert control.setting() == taken
    assert declaration.accepts(control.setting())


def test_an_emptied_number_is_automatic(qtbot) -> None:
    dialog = shown_dialog(qtbot, Settings(n_ctx=4096))
    told = changes(dialog)
    type_into(editor(dialog, "n_ctx"), "")
    press(dialog, "OK")
    assert told == [{"n_ctx": None}]


def test_the_keyboard_reaches_everything_and_the_page_follows(qtbot, dialog: SettingsDialog) -> None:
    (area,) = dialog.findChildren(QScrollArea)
    dialog.resize(360, 300)
    qtbot.waitUntil(lambda: 200 < editor(dialog, "temperature").width() < 360)
    editor(dialog, "temperature").setFocus()
    reached = []
    for _ in range(len(SHOWN) + 3):
        control = QApplication.focusWidget()
        assert control is not None
        reached.append(control.accessibleName())
        if not isinstance(control, QAbstractButton):
            top = control.mapTo(area, QPoint(0, 0)).y()
            assert 0 <= top < area.height()
        QTest.keyClick(control, Qt.Key.Key_Tab)
    assert reached[: len(SHOWN)] == list(LABELS.values())
    assert set(reached[len(SHOWN) :]) == {"OK", "Cancel", "Restore Defaults"}


def test_the_wheel_is_the_pages_except_where_the_focus_is(dialog: SettingsDialog) -> None:
    control = editor(dialog, "top_k")
    where, buttons, keys = QPointF(5, 5), Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier
    for has_focus in (False, True):
        editor(dialog, "top_k" if has_focus else "temperature").setFocus()
        place, phase = control.mapToGlobal(where), Qt.ScrollPhase.NoScrollPhase
        event = QWheelEvent(where, place, QPoint(), QPoint(0, -120), buttons, keys, phase, False)
        QApplication.sendEvent(control, event)
        assert event.isAccepted() == has_focus
        assert (control.setting() != Settings().top_k) == has_focus


def test_the_menu_opens_it_and_ok_saves(run) -> None:
    def change(window: Window):
        (action,) = (a for a in window.findChildren(QAction) if a.menuRole() == QAction.MenuRole.PreferencesRole)
        assert action.shortcut() == QKeySequence("Ctrl+,")
        dialog = open_dialog(window)
        type_into(editor(dialog, "temperature"), "0.2")
        type_into(editor(dialog, "n_ctx"), "4096")
        press(dialog, "OK")
        assert saved() == {"temperature": 0.2, "n_ctx": 4096}
        assert window.state.settings.temperature == 0.2
        yield lambda: not window.findChildren(SettingsDialog)
        assert not window.findChildren(NoticeBar)  # no model is there to be loaded again

        dialog = open_dialog(window)
        assert editor(dialog, "n_ctx").setting() == 4096
        press(dialog, "Restore Defaults")
        assert saved() == {"temperature": 0.2, "n_ctx": 4096}
        press(dialog, "OK")
        assert saved() == {}

    run(change)


def test_only_kernels_that_run_here_or_are_set_are_offered(run) -> None:
    def look(window: Window):
        def offered() -> list[object]:
            dialog = open_dialog(window)
            combo = editor(dialog, "kernels")
            dialog.close()
            return [combo.itemData(i) for i in range(combo.count())]

        assert offered() == [None, *choice.runnable()]
        yield lambda: not window.findChildren(SettingsDialog)
        window.state.settings.kernels = strange
        assert sorted(offered()[1:]) == sorted([*choice.runnable(), strange])

    (strange, *_) = (name for name in choice.KERNELS if name not in choice.runnable())
    run(look)


def test_failure_to_save_is_told(run) -> None:
    def change(window: Window):
        (config_folder() / "settings.json").mkdir()
        dialog = open_dialog(window)
        type_into(editor(dialog, "top_k"), "7")
        press(dialog, "OK")
        yield lambda: window.findChildren(NoticeBar)
        assert ["can't be saved" in bar.text for bar in window.findChildren(NoticeBar)] == [True]

    run(change)


def test_the_model_is_loaded_again_where_that_matters(run, smollm2: Path) -> None:
    def change(window: Window):
        state = window.state
        yield lambda: state.model.model is not None
        dialog = open_dialog(window)
        type_into(editor(dialog, "top_k"), "7")
        press(dialog, "OK")
        assert not window.findChildren(NoticeBar)
        yield lambda: not window.findChildren(SettingsDialog)

        dialog = open_dialog(window)
        type_into(editor(dialog, "n_ctx"), "600")
        press(dialog, "OK")
        (bar,) = window.findChildren(NoticeBar)
        assert "when the model is loaded again" in bar.text
        assert state.model.model is not None
        assert state.model.model.n_ctx != 600
        press(bar, "Load Again")
        yield lambda: state.model.model.n_ctx == 600
        assert state.model.path == smollm2

    run(change, smollm2)


def test_the_status_line_says_why_faster_kernels_do_not_compute(
    run, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> tuple[str, ...]:
        raise ImportError("no compiler")

    def look(window: Window):
        (status,) = window.findChildren(QStatusBar)

        def texts() -> list[str]:
            return [label.text() for label in status.findChildren(QLabel)]

        yield lambda: window.state.model.model is not None
        note = "The kernels “numpy” compute: the compiler of the faster ones can't be loaded (no compiler)."
        assert note in texts()
        assert [bar.text for bar in window.findChildren(NoticeBar)] == [note]

    monkeypatch.setattr(choice, "_compiled", fail)
    run(look, smollm2)
