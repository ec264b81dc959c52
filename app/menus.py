"""The menu bar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QApplication, QMenu, QMenuBar, QWidget

from app.dialogs import Dialogs
from app.panels.chat import ChatPanel
from app.state.app_state import AppState
from app.widgets.foreign_words import caption

_Key = QKeySequence.StandardKey
_Shortcut = QKeySequence | QKeySequence.StandardKey | Qt.Key | str


class Menus(QMenuBar):
    """All that can be done, with its shortcuts; `show_library` and `show_plot` are the window's to connect."""

    def __init__(self, state: AppState, chat: ChatPanel, dialogs: Dialogs, window: QWidget) -> None:
        super().__init__(window)
        self._state = state
        self._build_file(dialogs, window)
        self._build_edit(dialogs)
        self._build_chat(chat)
        self._view = self.addMenu("&View")
        self.show_library = self._toggle("Conversation &List", "Ctrl+L")
        self.show_plot = self._toggle("Prefill &Plot", "Ctrl+P")
        self._view.addSeparator()
        self.zoom_in = self._add(self._view, "Zoom &In", _Key.ZoomIn)
        self.zoom_out = self._add(self._view, "Zoom &Out", _Key.ZoomOut)
        self.zoom_reset = self._add(self._view, "&Normal Size", "Ctrl+0")
        self._add(self.addMenu("&Help"), "&About Dormouse", None, dialogs.about)
        for signal in (state.shown.conversation_changed, state.shown.transcript_changed, state.shown.phase_changed):
            signal.connect(self._update)
        self._update()

    def _build_file(self, dialogs: Dialogs, window: QWidget) -> None:
        menu = self.addMenu("&File")
        self._add(menu, "&New Chat", _Key.New, self._state.new_conversation)
        self._add(menu, "&Open…", _Key.Open, dialogs.open_conversation)
        self._recent = QMenu("Open &Recent", menu)
        self._recent.aboutToShow.connect(self._fill_recent)
        menu.addMenu(self._recent)
        self._save_as = self._add(menu, "Save &As…", "Ctrl+Shift+S", dialogs.save_as)
        menu.addSeparator()
        self._add(menu, "Load &Model…", "Ctrl+M", dialogs.load_model)
        menu.addSeparator()
        self._add(menu, "&Quit", "Ctrl+Q", window.close).setMenuRole(QAction.MenuRole.QuitRole)

    def _build_edit(self, dialogs: Dialogs) -> None:
        menu = self.addMenu("&Edit")
        for text, key, method in (
            ("&Undo", _Key.Undo, "undo"),
            ("&Redo", _Key.Redo, "redo"),
            ("Cu&t", _Key.Cut, "cut"),
            ("&Copy", _Key.Copy, "copy"),
            ("&Paste", _Key.Paste, "paste"),
            ("Select &All", _Key.SelectAll, "selectAll"),
        ):
            if method in ("cut", "selectAll"):
                menu.addSeparator()
            self._add(menu, text, key, partial(_edit, method))
        menu.addSeparator()
        settings = self._add(menu, "Settin&gs…", "Ctrl+,", dialogs.settings)
        settings.setMenuRole(QAction.MenuRole.PreferencesRole)

    def _build_chat(self, chat: ChatPanel) -> None:
        menu = self.addMenu("&Chat")
        self._stop = self._add(menu, "&Stop", Qt.Key.Key_Escape, self._state.stop)
        self._regenerate = self._add(menu, "&Regenerate", "Ctrl+R", self._state.regenerate)
        self._edit_last = self._add(menu, "&Edit Last Message", "Ctrl+E", chat.edit_last)

    def _add(
        self, menu: QMenu, text: str, shortcut: _Shortcut | None, run: Callable[[], object] | None = None
    ) -> QAction:
        action = menu.addAction(text)
        if shortcut is not None:
            action.setShortcut(QKeySequence(shortcut))
        if run is not None:
            action.triggered.connect(lambda _checked: run())
        return action

    def _toggle(self, text: str, shortcut: str) -> QAction:
        action = self._add(self._view, text, shortcut)
        action.setCheckable(True)
        return action

    @Slot()
    def _update(self) -> None:
        conversation = self._state.conversation
        can_answer = not conversation.is_busy and bool(conversation.transcript.user_messages())
        self._stop.setEnabled(conversation.is_busy)
        self._regenerate.setEnabled(can_answer)
        self._edit_last.setEnabled(can_answer)
        self._save_as.setEnabled(bool(conversation.transcript.messages))

    @Slot()
    def _fill_recent(self) -> None:
        self._recent.clear()
        for path in self._state.settings.recent:
            self._add(self._recent, caption(path), None, partial(self._state.open_conversation, Path(path)))
        self._recent.setEnabled(True)
        if self._recent.isEmpty():
            self._recent.addAction("Nothing yet").setEnabled(False)


def _edit(method: str) -> None:
    """Call a method of the text that has the focus, if it has such a one."""
    run = getattr(QApplication.focusWidget(), method, None)
    if run is not None:
        run()
