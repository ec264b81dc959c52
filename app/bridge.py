"""The one place where events of the engine's threads become a Qt signal."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from engine.events import Event


class Bridge(QObject):
    """Lives in the GUI thread; its signal arrives there, whichever thread posts.

    Receivers must be methods of QObjects of the GUI thread: Qt decides by the receiver where a slot runs, and a bare
    function would run in the thread that posts.
    """

    posted = Signal(object)
    """An `engine.events.Event`."""

    def post(self, event: Event) -> None:
        """Pass on an event; may be called from any thread and returns at once."""
        self.posted.emit(event)
