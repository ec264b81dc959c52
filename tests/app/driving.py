"""A person at the real program, driven from inside."""

import inspect
import time
from collections.abc import Callable, Generator
from pathlib import Path

from PySide6.QtCore import QMimeData, QObject, QPointF, Qt, QTimer, QUrl
from PySide6.QtGui import QAction, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

from app.state.app_state import AppState
from app.widgets.notice_bar import NoticeBar
from app.window import Window

Script = Callable[[Window], Generator[Callable[[], object], None, None]]
"""What a person does: yields conditions, and goes on when they are true."""
PATIENCE = 60.0  # seconds for one condition


class Person(QObject):
    """Carries out a script in the running program and closes the window at its end, whatever happens."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self._steps: Generator[Callable[[], object], None, None] | None = None
        self._condition: Callable[[], object] = lambda: True
        self._deadline = time.monotonic() + PATIENCE
        self.error: BaseException | None = None
        self.is_done = False
        self._timer = QTimer(self, interval=5)
        self._timer.timeout.connect(self._step)
        self._timer.start()

    def _step(self) -> None:
        try:
            if self._condition():
                self._steps = self._steps or self._script(window())
                self._condition = next(self._steps)
                self._deadline = time.monotonic() + PATIENCE
            elif time.monotonic() > self._deadline:
                self.error = TimeoutError(f"never came true: {inspect.getsource(self._condition)}")
                self._end()
        except StopIteration:
            self._end()
        except BaseException as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self._timer.stop()
        for widget in windows():
            widget.close()
        QApplication.quit()


def windows() -> list[Window]:
    return [widget for widget in QApplication.topLevelWidgets() if isinstance(widget, Window) and widget.isVisible()]


def window() -> Window:
    (only,) = windows()
    return only


def answered(state: AppState) -> Callable[[], bool]:
    """Return the condition that a turn which is yet to begin has ended, however short it is: its receipt is there."""
    before = set(state.conversation.receipts)

    def has_receipt() -> bool:
        conversation = state.conversation
        return not conversation.is_busy and conversation.transcript.leaf in conversation.receipts.keys() - before

    return has_receipt


def notices(window: Window) -> list[str]:
    """Return what the notices say that are shown."""
    return [bar.text for bar in window.findChildren(NoticeBar) if bar.isVisible()]


def buttons(root: QWidget) -> list[str]:
    """Return what a screen reader calls the buttons that are shown."""
    return [button.accessibleName() for button in root.findChildren(QAbstractButton) if button.isVisible()]


def press(root: QWidget, name: str) -> None:
    """Click the button that a screen reader calls `name`; it must be shown and enabled."""
    (button,) = (b for b in root.findChildren(QAbstractButton) if b.accessibleName() == name and b.isVisible())
    assert button.isEnabled(), f"{name} is disabled"
    button.click()


def choose(root: QWidget, text: str) -> None:
    """Trigger the action of the menu bar that reads `text`."""
    (action,) = (a for a in root.findChildren(QAction) if a.text().replace("&", "") == text)
    assert action.isEnabled(), f"{text} is disabled"
    action.trigger()


def drop(window: Window, *paths: Path) -> None:
    """Drop files on the window."""
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    place = QPointF(window.rect().center())
    buttons = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    entered = QDragEnterEvent(place.toPoint(), Qt.DropAction.CopyAction, data, *buttons)
    QApplication.sendEvent(window, entered)
    assert entered.isAccepted()
    QApplication.sendEvent(window, QDropEvent(place, Qt.DropAction.CopyAction, data, *buttons))
