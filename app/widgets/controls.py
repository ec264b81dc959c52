"""Small controls, each with the name that a screen reader says, and each showing the letters that it is given."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QMessageBox, QProgressBar, QPushButton, QSizePolicy, QToolButton, QWidget

from app.resources import icon
from app.widgets.foreign_words import tool_tip as plain_tool_tip

_STEPS = 1000  # as bytes of a file exceed what a progress bar counts


def label(text: str, parent: QWidget, *, wraps: bool = False) -> QLabel:
    """Return a label that takes its text for nothing but letters, whatever they look like."""
    made = QLabel(parent)
    made.setTextFormat(Qt.TextFormat.PlainText)
    made.setWordWrap(wraps)
    made.setText(text)
    return made


def let_shrink(wrapping: QLabel) -> None:
    """Let a label that wraps be as narrow as its place, and as high as its lines need there."""
    policy = wrapping.sizePolicy()
    policy.setHorizontalPolicy(QSizePolicy.Policy.Ignored)
    wrapping.setSizePolicy(policy)


def markup_label(markup: str, parent: QWidget) -> QLabel:
    """Return a label with Qt's HTML in it: for words of ours alone."""
    made = QLabel(parent)
    made.setTextFormat(Qt.TextFormat.RichText)
    made.setWordWrap(True)
    made.setText(markup)
    return made


def message_box(title: str, text: str, details: str, parent: QWidget) -> QMessageBox:
    """Return a dialog that takes its texts for nothing but letters; it is gone once it is closed."""
    box = QMessageBox(QMessageBox.Icon.NoIcon, title, text, parent=parent)
    box.setInformativeText(" ")  # so that there is a label for it, which the box's `setTextFormat` does not reach
    for made in box.findChildren(QLabel):
        made.setTextFormat(Qt.TextFormat.PlainText)
    box.setInformativeText(details)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return box


def push_button(text: str, parent: QWidget, *, name: str = "", tool_tip: str = "") -> QPushButton:
    """Return a button with a text; `name` where the text alone does not say what it does."""
    button = QPushButton(text, parent)
    button.setAccessibleName(name or text)
    button.setToolTip(plain_tool_tip(tool_tip))
    return button


def tool_button(icon_name: str, name: str, parent: QWidget) -> QToolButton:
    """Return a flat button with an icon of `resources/`, explained by its name."""
    button = QToolButton(parent)
    button.setIcon(icon(icon_name))
    button.setAutoRaise(True)
    button.setToolTip(plain_tool_tip(name))
    button.setAccessibleName(name)
    return button


class ProgressBar(QProgressBar):
    """A thin bar; a total of 0 means that nobody knows how long it takes."""

    def __init__(self, name: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName(name)
        self.setTextVisible(False)
        self.setFixedHeight(6)

    def set_progress(self, done: int, total: int) -> None:
        """Show how much is done of all."""
        self.setRange(0, _STEPS if total else 0)
        if total:
            self.setValue(_STEPS * done // total)
