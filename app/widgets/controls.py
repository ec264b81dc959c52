"""Small controls, each with the name that a screen reader says."""

from __future__ import annotations

from PySide6.QtWidgets import QProgressBar, QPushButton, QToolButton, QWidget

from app.resources import icon

_STEPS = 1000  # as bytes of a file exceed what a progress bar counts


def push_button(text: str, parent: QWidget, *, name: str = "", tool_tip: str = "") -> QPushButton:
    """Return a button with a text; `name` where the text alone does not say what it does."""
    button = QPushButton(text, parent)
    button.setAccessibleName(name or text)
    button.setToolTip(tool_tip)
    return button


def tool_button(icon_name: str, name: str, parent: QWidget) -> QToolButton:
    """Return a flat button with an icon of `resources/`, explained by its name."""
    button = QToolButton(parent)
    button.setIcon(icon(icon_name))
    button.setAutoRaise(True)
    button.setToolTip(name)
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
