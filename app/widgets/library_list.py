"""The list of conversations: find, open, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QDateTime, QLocale, QModelIndex, QPoint, QSize, QSortFilterProxyModel, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QAction, QDesktopServices, QFont, QKeySequence, QPalette, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QFrame, QLineEdit, QListView, QMenu, QStackedLayout, QVBoxLayout, QWidget

from app.widgets.controls import markup_label
from app.widgets.entry_delegate import DAMAGED_ROLE, DETAIL_ROLE, EntryDelegate
from app.widgets.foreign_words import tool_tip

if TYPE_CHECKING:
    from app.library import LibraryEntry

_PATH_ROLE = Qt.ItemDataRole.UserRole
_NO_ENTRIES = "<p><b>No conversations yet</b></p><p>Each one that you begin is kept here.</p>"
_NO_MATCH = "<p>No title has these words.</p>"


class LibraryList(QWidget):
    """Conversations with their titles, dates and sizes; a click or Return opens one."""

    opened = Signal(str)
    """The conversation of this path is wanted."""
    removed = Signal(str)
    """The conversation of this path is to be deleted; nobody was asked yet."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: tuple[LibraryEntry, ...] = ()
        self._current: str | None = None
        self._model = QStandardItemModel(self)
        self._matches = QSortFilterProxyModel(self)
        self._matches.setSourceModel(self._model)
        self._matches.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)

        self._filter = QLineEdit(self)
        self._filter.setPlaceholderText("Find by title")
        self._filter.setAccessibleName("Find conversations by title")
        self._filter.setClearButtonEnabled(True)
        self._filter.textChanged.connect(self._set_filter)
        self._filter.returnPressed.connect(self._open_first)

        self._view = QListView(self)
        self._view.setAccessibleName("Conversations")
        self._view.setFrameShape(QFrame.Shape.NoFrame)
        self._view.viewport().setAutoFillBackground(False)
        self._view.setModel(self._matches)
        self._view.setItemDelegate(EntryDelegate(self._view))
        self._view.setUniformItemSizes(True)
        self._view.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self._view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self._view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self._view.customContextMenuRequested.connect(self._show_menu)
        self._view.clicked.connect(self._open_clicked)
        self._open = self._add_action("&Open", self._open_selected, "Return", "Enter")
        self._show_in_folder = self._add_action("Show in &Folder", self._show_folder)
        self._delete = self._add_action("&Delete…", self._remove_selected, "Delete")

        self._notice = markup_label("", self)
        self._notice.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self._notice.setMargin(24)
        self._notice.setForegroundRole(QPalette.ColorRole.PlaceholderText)

        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 8)
        layout.setSpacing(8)
        layout.addWidget(self._filter)
        self._pages = QStackedLayout()
        self._pages.addWidget(self._view)
        self._pages.addWidget(self._notice)
        layout.addLayout(self._pages)
        self._show_page()

    @property
    def shown(self) -> list[str]:
        """The paths of the entries that match the filter, as they are listed."""
        return [self._matches.index(row, 0).data(_PATH_ROLE) for row in range(self._matches.rowCount())]

    @property
    def selected(self) -> str | None:
        """The path of the selected entry."""
        index = self._view.currentIndex()
        return index.data(_PATH_ROLE) if index.isValid() else None

    def sizeHint(self) -> QSize:
        return QSize(240, 400)

    def set_entries(self, entries: Sequence[LibraryEntry]) -> None:
        """Show entries in this order. The selection and the place in the list stay."""
        if tuple(entries) == self._entries:
            return
        self._entries = tuple(entries)
        selected, place = self.selected, self._view.verticalScrollBar().value()
        self._model.clear()
        for entry in entries:
            self._model.appendRow(_item(entry))
        self._mark_current()
        self._select(selected)
        self._view.verticalScrollBar().setValue(place)
        self._show_page()

    def set_current(self, path: str | None) -> None:
        """Mark the conversation that is open, and select it."""
        if path != self._current:
            self._current = path
            self._mark_current()
            self._select(path)

    def _add_action(self, text: str, slot: Callable[[], None], *shortcuts: str) -> QAction:
        action = QAction(text, self._view)
        action.setShortcuts([QKeySequence(shortcut) for shortcut in shortcuts])
        action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        action.triggered.connect(slot)
        self._view.addAction(action)
        return action

    def _mark_current(self) -> None:
        for row in range(self._model.rowCount()):
            item = self._model.item(row)
            font = QFont(self._view.font())
            font.setBold(item.data(_PATH_ROLE) == self._current)
            item.setFont(font)

    def _select(self, path: str | None) -> None:
        row = self.shown.index(path) if path in self.shown else -1
        self._view.setCurrentIndex(self._matches.index(row, 0))

    def _show_page(self) -> None:
        self._notice.setText(_NO_MATCH if self._entries else _NO_ENTRIES)
        self._pages.setCurrentWidget(self._view if self._matches.rowCount() else self._notice)

    @Slot(str)
    def _set_filter(self, text: str) -> None:
        self._matches.setFilterFixedString(text.strip())
        self._show_page()

    @Slot()
    def _open_first(self) -> None:
        if self.shown:
            self.opened.emit(self.shown[0])

    @Slot(QModelIndex)
    def _open_clicked(self, index: QModelIndex) -> None:
        if (path := index.data(_PATH_ROLE)) != self._current:
            self.opened.emit(path)

    @Slot()
    def _open_selected(self) -> None:
        if self.selected is not None:
            self.opened.emit(self.selected)

    @Slot()
    def _remove_selected(self) -> None:
        if self.selected is not None:
            self.removed.emit(self.selected)

    @Slot()
    def _show_folder(self) -> None:
        if self.selected is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(Path(self.selected).parent))

    @Slot(QPoint)
    def _show_menu(self, place: QPoint) -> None:
        if self._view.indexAt(place).isValid():
            menu = QMenu(self)
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.addActions([self._open, self._show_in_folder])
            menu.addSeparator()
            menu.addAction(self._delete)
            menu.popup(self._view.viewport().mapToGlobal(place))


def _item(entry: LibraryEntry) -> QStandardItem:
    locale = QLocale()
    size = locale.formattedDataSize(entry.nbytes, 1, QLocale.DataSizeFormat.DataSizeSIFormat)
    modified = QDateTime.fromMSecsSinceEpoch(int(1000 * entry.modified))
    detail = f"{_short_date(modified, locale)} · {size}"
    item = QStandardItem(entry.title)
    item.setData(entry.path, _PATH_ROLE)
    item.setData(detail, DETAIL_ROLE)
    item.setData(entry.damaged, DAMAGED_ROLE)
    item.setAccessibleText(f"{entry.title}, {detail}{', damaged' if entry.damaged else ''}")
    moment = locale.toString(modified, QLocale.FormatType.ShortFormat)
    damage = "\nThis file is damaged: opening it shows what of it can be read." if entry.damaged else ""
    item.setToolTip(tool_tip(f"{entry.title}\n{moment}, {size}{damage}"))
    return item


def _short_date(moment: QDateTime, locale: QLocale) -> str:
    today = QDateTime.currentDateTime().date()
    if moment.date() == today:
        return locale.toString(moment.time(), QLocale.FormatType.ShortFormat)
    return locale.toString(moment.date(), "d MMM" if moment.date().year() == today.year() else "d MMM yyyy")
