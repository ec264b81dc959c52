"""The list of conversations, as a person uses it."""

import time
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QListView, QMenu
from pytestqt.qtbot import QtBot

from app.library import LibraryEntry
from app.widgets.library_list import LibraryList

ENTRIES = [
    LibraryEntry("/c/bread.slot", "How to bake bread", time.time(), 48_300_000),
    LibraryEntry("/c/mice.slot", "Where do dormice sleep?", time.time() - 86_400 * 3, 1_200),
    LibraryEntry("/c/lost.slot", "lost", time.time() - 86_400 * 800, 9_000, damaged=True),
]


class Seen:
    """The signals that came."""

    def __init__(self, widget: LibraryList) -> None:
        self.opened: list[str] = []
        self.removed: list[str] = []
        widget.opened.connect(self.opened.append)
        widget.removed.connect(self.removed.append)


@pytest.fixture
def widget(qtbot: QtBot) -> LibraryList:
    made = LibraryList()
    qtbot.addWidget(made)
    made.resize(240, 400)
    made.set_entries(ENTRIES)
    made.show()
    return made


@pytest.fixture
def seen(widget: LibraryList) -> Seen:
    return Seen(widget)


def view(widget: LibraryList) -> QListView:
    return widget.findChild(QListView)


def field(widget: LibraryList) -> QLineEdit:
    return widget.findChild(QLineEdit)


def place(widget: LibraryList, row: int) -> QPoint:
    return view(widget).visualRect(view(widget).model().index(row, 0)).center()


def accessible_text(widget: LibraryList, row: int) -> str:
    return view(widget).model().index(row, 0).data(Qt.ItemDataRole.AccessibleTextRole)


def test_a_click_opens_what_is_not_open(widget: LibraryList, seen: Seen, qtbot: QtBot) -> None:
    qtbot.mouseClick(view(widget).viewport(), Qt.MouseButton.LeftButton, pos=place(widget, 1))
    assert seen.opened == ["/c/mice.slot"]
    widget.set_current("/c/mice.slot")
    qtbot.mouseClick(view(widget).viewport(), Qt.MouseButton.LeftButton, pos=place(widget, 1))
    assert seen.opened == ["/c/mice.slot"]


def test_the_keyboard_does_it_all(widget: LibraryList, seen: Seen, qtbot: QtBot) -> None:
    widget.set_current("/c/bread.slot")
    view(widget).setFocus()
    qtbot.keyClick(view(widget), Qt.Key.Key_Down)
    assert widget.selected == "/c/mice.slot"
    assert seen.opened == []
    qtbot.keyClick(view(widget), Qt.Key.Key_Return)
    assert seen.opened == ["/c/mice.slot"]
    qtbot.keyClick(view(widget), Qt.Key.Key_Delete)
    assert seen.removed == ["/c/mice.slot"]


def test_without_a_selection_keys_do_nothing(widget: LibraryList, seen: Seen, qtbot: QtBot) -> None:
    widget.set_current(None)
    view(widget).setFocus()
    qtbot.keyClick(view(widget), Qt.Key.Key_Delete)
    qtbot.keyClick(view(widget), Qt.Key.Key_Return)
    assert seen.opened == seen.removed == []


def test_titles_are_found(widget: LibraryList, seen: Seen, qtbot: QtBot) -> None:
    qtbot.keyClicks(field(widget), "DORM")
    assert widget.shown == ["/c/mice.slot"]
    qtbot.keyClick(field(widget), Qt.Key.Key_Return)
    assert seen.opened == ["/c/mice.slot"]
    qtbot.keyClicks(field(widget), "(((")
    assert widget.shown == []
    qtbot.keyClick(field(widget), Qt.Key.Key_Return)
    assert any("No title" in label.text() for label in widget.findChildren(QLabel) if label.isVisible())
    field(widget).clear()
    assert len(widget.shown) == 3


def test_the_filter_lasts_when_entries_change(widget: LibraryList, qtbot: QtBot) -> None:
    qtbot.keyClicks(field(widget), "bread")
    widget.set_entries(ENTRIES[1:])
    assert widget.shown == []
    widget.set_entries(ENTRIES)
    assert widget.shown == ["/c/bread.slot"]


def test_the_selection_lasts_when_the_order_changes(widget: LibraryList) -> None:
    widget.set_current("/c/lost.slot")
    widget.set_entries(ENTRIES[::-1])
    assert widget.selected == "/c/lost.slot"
    assert widget.shown[0] == "/c/lost.slot"


def test_the_current_conversation_is_bold(widget: LibraryList) -> None:
    widget.set_current("/c/mice.slot")
    model = view(widget).model()
    fonts = [model.index(row, 0).data(Qt.ItemDataRole.FontRole).bold() for row in range(3)]
    assert fonts == [False, True, False]
    assert widget.selected == "/c/mice.slot"


def test_size_date_and_damage_are_told(widget: LibraryList) -> None:
    assert "How to bake bread" in accessible_text(widget, 0)
    assert "48.3 MB" in accessible_text(widget, 0)
    year = time.localtime(ENTRIES[2].modified).tm_year
    assert f"{year}" in accessible_text(widget, 2)
    assert "damaged" in accessible_text(widget, 2)
    assert "damaged" not in accessible_text(widget, 1)


def test_empty_library_says_so(widget: LibraryList) -> None:
    widget.set_entries([])
    assert any("No conversations yet" in label.text() for label in widget.findChildren(QLabel) if label.isVisible())


def test_the_menu_names_everything(
    widget: LibraryList, seen: Seen, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_folders: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: shown_folders.append(url.toLocalFile()))
    qtbot.mouseClick(view(widget).viewport(), Qt.MouseButton.RightButton, pos=place(widget, 2))
    view(widget).customContextMenuRequested.emit(place(widget, 2))
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    actions = {action.text().replace("&", ""): action for action in menu.actions() if action.text()}
    assert list(actions) == ["Open", "Show in Folder", "Delete…"]
    for action in actions.values():
        action.trigger()
    assert seen.opened == ["/c/lost.slot"]
    assert seen.removed == ["/c/lost.slot"]
    assert shown_folders == [str(Path("/c"))]
    menu.close()


def test_the_menu_stays_away_from_empty_places(widget: LibraryList) -> None:
    view(widget).customContextMenuRequested.emit(QPoint(5, 390))
    assert QApplication.activePopupWidget() is None


def test_every_part_has_a_name(widget: LibraryList) -> None:
    assert field(widget).accessibleName()
    assert view(widget).accessibleName()
