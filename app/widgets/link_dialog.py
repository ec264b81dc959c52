"""The dialog that asks before a link is opened."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from app.widgets.controls import label
from app.widgets.foreign_words import legible
from app.widgets.links import can_open, written

_WIDTH = 480
_N_LINES = 4
_Button = QDialogButtonBox.StandardButton
_Role = QDialogButtonBox.ButtonRole


class LinkDialog(QDialog):
    """Shows where a link leads, whatever its words say; opening is a choice, and only of web and mail addresses."""

    def __init__(self, url: QUrl, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._url = url
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Open Link")
        heading = label(legible(self._question()), self, wraps=True)
        font = heading.font()
        font.setBold(True)
        heading.setFont(font)
        self._address = QPlainTextEdit(written(url), self)
        self._address.setAccessibleName("Address of the link")
        self._address.setReadOnly(True)
        self._address.setTabChangesFocus(True)
        lines = _N_LINES * self._address.fontMetrics().lineSpacing()
        self._address.setFixedHeight(lines + 2 * round(self._address.document().documentMargin()) + 2)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 16, 16)
        column.setSpacing(8)
        column.addWidget(heading)
        column.addWidget(self._address)
        column.addWidget(label(_HINTS[can_open(url)], self, wraps=True))
        column.addSpacing(8)
        column.addWidget(self._buttons())
        self.resize(_WIDTH, self.sizeHint().height())

    @property
    def address(self) -> str:
        """The whole address, as it is shown."""
        return self._address.toPlainText()

    def _question(self) -> str:
        if not can_open(self._url):
            return "This link does not lead to the web or to mail"
        if self._url.scheme() == "mailto":
            return f"Write to {self._url.path(QUrl.ComponentFormattingOption.FullyEncoded)}?"
        return f"Open a page of {self._url.host(QUrl.ComponentFormattingOption.FullyEncoded)}?"

    def _buttons(self) -> QDialogButtonBox:
        buttons = QDialogButtonBox(_Button.Cancel, self)
        copy = buttons.addButton("&Copy Address", _Role.ActionRole)
        copy.clicked.connect(self._copy)
        if can_open(self._url):
            buttons.addButton("&Open", _Role.AcceptRole)
        for button in buttons.findChildren(QPushButton):
            button.setAccessibleName(button.text().replace("&", ""))
            button.setAutoDefault(False)
        cancel = buttons.button(_Button.Cancel)
        cancel.setDefault(True)
        cancel.setFocus()
        buttons.accepted.connect(self._open)
        buttons.rejected.connect(self.reject)
        return buttons

    @Slot()
    def _open(self) -> None:
        QDesktopServices.openUrl(self._url)
        self.accept()

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.address)


_HINTS = {
    True: "The address was written by a model, or by whoever made the file.",
    False: "Dormouse opens web and mail addresses alone.",
}
