"""The window: puts the panels together."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, Qt, Slot
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QResizeEvent
from PySide6.QtWidgets import QMainWindow, QSplitter, QVBoxLayout, QWidget

from app.dialogs import Dialogs
from app.menus import Menus
from app.panels.chat import ChatPanel
from app.panels.library import LibraryPanel
from app.panels.notices import NoticesPanel
from app.panels.plot import PlotPanel
from app.panels.status import StatusPanel
from app.state.app_state import AppState
from app.state.starter_state import StarterState

_SIZE = (1080, 760)
_LEAST_SIZE = (360, 300)
_LEAST_WIDTH = 640  # below it the list makes room for the chat
_LEAST_HEIGHT = 520  # below it the plot does
_ZOOM_STEP = 10
_ZOOMS = (50, 300)


class Window(QMainWindow):
    """The one window; closing it ends the session and saves everything.

    It closes within a minute and a half whatever happens, and nearly always at once: `Session.close` has the bounds.
    """

    def __init__(self, state: AppState, starter: StarterState) -> None:
        super().__init__()
        self.state = state
        self._starter = starter
        dialogs = Dialogs(state, self)
        state.reports.model_wanted.connect(dialogs.load_model)
        state.reports.place_wanted.connect(dialogs.save_as)
        self.chat = ChatPanel(state, starter, self)
        self.chat.page_changed.connect(self._update_panels)
        self._library, self._plot = LibraryPanel(state, self), PlotPanel(state, self)
        self._base_size = self.chat.font().pointSizeF()
        self._menus = Menus(state, self.chat, dialogs, self)
        self.setMenuBar(self._menus)
        self.setStatusBar(StatusPanel(state, self))
        self.setCentralWidget(self._build())
        self.setAcceptDrops(True)
        self._connect()
        self._restore()
        self._update_title()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        event.acceptProposedAction()
        self.state.open_files([Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()])

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_panels()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.state.settings.window_geometry = self.saveGeometry().toBase64().toStdString()
        self._starter.close()
        self.state.close()
        self._plot.finish()
        super().closeEvent(event)

    @Slot(list)
    def receive(self, paths: list[str]) -> None:
        """Open what another start of the program was given, and come to the front."""
        self.state.open_files(map(Path, paths))
        self.setWindowState(self.windowState() & ~Qt.WindowState.WindowMinimized)
        self.raise_()
        self.activateWindow()

    def _build(self) -> QWidget:
        rows = QSplitter(Qt.Orientation.Vertical, self, childrenCollapsible=False)
        rows.addWidget(self.chat)
        rows.addWidget(self._plot)
        rows.setStretchFactor(0, 1)
        rows.setSizes([560, 180])
        right = QWidget(self)
        column = QVBoxLayout(right)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(NoticesPanel(self.state, right))
        column.addWidget(rows, 1)
        columns = QSplitter(Qt.Orientation.Horizontal, self, childrenCollapsible=False)
        columns.addWidget(self._library)
        columns.addWidget(right)
        columns.setStretchFactor(1, 1)
        columns.setSizes([240, 840])
        return columns

    def _connect(self) -> None:
        menus, state = self._menus, self.state
        menus.show_library.toggled.connect(self._show_library)
        menus.show_plot.toggled.connect(self._show_plot)
        menus.zoom_in.triggered.connect(self._zoom_in)
        menus.zoom_out.triggered.connect(self._zoom_out)
        menus.zoom_reset.triggered.connect(self._zoom_reset)
        state.files.changed.connect(self._update_title)
        state.shown.conversation_changed.connect(self._update_title)

    def _restore(self) -> None:
        settings = self.state.settings
        self.setMinimumSize(*_LEAST_SIZE)
        self.resize(*_SIZE)
        if settings.window_geometry is not None:
            self.restoreGeometry(QByteArray.fromBase64(settings.window_geometry.encode()))
        self._menus.show_library.setChecked(settings.show_library)
        self._menus.show_plot.setChecked(settings.show_plot)
        self._set_zoom(settings.zoom)
        self._update_panels()

    @Slot()
    def _update_panels(self) -> None:
        settings = self.state.settings
        self._library.setVisible(settings.show_library and self.width() >= _LEAST_WIDTH)
        has_room = self.height() >= _LEAST_HEIGHT and not self.chat.is_welcoming
        self._plot.setVisible(settings.show_plot and has_room)

    def _set_zoom(self, percent: int) -> None:
        self.state.settings.zoom = percent = max(_ZOOMS[0], min(_ZOOMS[1], percent))
        font = self.chat.font()
        font.setPointSizeF(self._base_size * percent / 100)
        self.chat.setFont(font)

    @Slot()
    def _update_title(self) -> None:
        users = self.state.conversation.transcript.user_messages()
        title = " ".join(users[0].text.split())[:80] if users else ""
        self.setWindowTitle(f"{title} — Dormouse" if title else "Dormouse")

    @Slot(bool)
    def _show_library(self, shown: bool) -> None:
        self.state.settings.show_library = shown
        self._update_panels()

    @Slot(bool)
    def _show_plot(self, shown: bool) -> None:
        self.state.settings.show_plot = shown
        self._update_panels()

    @Slot()
    def _zoom_in(self) -> None:
        self._set_zoom(self.state.settings.zoom + _ZOOM_STEP)

    @Slot()
    def _zoom_out(self) -> None:
        self._set_zoom(self.state.settings.zoom - _ZOOM_STEP)

    @Slot()
    def _zoom_reset(self) -> None:
        self._set_zoom(100)
