"""The messages of a conversation, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, Qt, QTimer, Slot
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.widgets.centered import Centered
from app.widgets.controls import label
from app.widgets.markdown_sections import SLICE_WORK
from app.widgets.message_view import VIEW_WORK, MessageView

MOST_WORK = 150_000
"""What the messages that are there cost together, about, however many the conversation has."""

_NEAR = 8  # pixels from the bottom that count as the bottom
_AHEAD = 2  # heights of the view that there is something beyond its edges, if there are messages
_ABOVE = 2  # widgets above the messages


class TranscriptView(QScrollArea):
    """Scrolls along with what is added while the reader is at the bottom, and stays put otherwise.

    Of a long conversation only some messages in a row are there, the last ones at first. They are made in slices of
    bounded work, each in an event of its own, from the bottom up; more are made as the reader comes near them, and
    those far away go.
    """

    def __init__(self, make: Callable[[int], MessageView], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._make = make
        self._ids: list[int] = []
        self._first = 0  # index of the first message that is there
        self._views: list[MessageView] = []
        self._follows = True
        self._is_adjusting = False
        self._anchor: tuple[MessageView, int] | None = None  # what the reader looks at, and its distance from the top
        self._building = QTimer(self, singleShot=True, interval=0)
        self._building.timeout.connect(self._build)
        self._hint = label("", self, wraps=True)
        self._hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._earlier = label("", self)
        self._earlier.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._earlier.hide()
        self._column = QVBoxLayout()
        self._column.setContentsMargins(0, 16, 0, 16)
        self._column.setSpacing(16)
        self._column.addWidget(self._hint, 1)
        self._column.addWidget(self._earlier)
        self._column.addStretch()
        self._content = Centered(self._column, self)
        self._content.setBackgroundRole(QPalette.ColorRole.Base)
        for quiet in (self._hint, self._earlier):
            quiet.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self.setWidget(self._content)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Transcript")
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._scrolled)

    @property
    def views(self) -> list[MessageView]:
        """The messages that are there, first to last."""
        return list(self._views)

    def view(self, id: int) -> MessageView | None:
        """Return a message if it is there."""
        return next((view for view in reversed(self._views) if view.id == id), None)

    def set_hint(self, text: str) -> None:
        """Set what stands here while there is no message."""
        self._hint.setText(text)
        self._hint.setVisible(not self._ids)

    def set_messages(self, ids: Sequence[int]) -> None:
        """Show these messages, keeping those that are there already; the first slice of the others at once."""
        was_at_end = self._last == len(self._ids)
        same = next((i for i, (old, new) in enumerate(zip(self._ids, ids, strict=False)) if old != new), None)
        same = min(len(self._ids), len(ids)) if same is None else same
        self._ids = list(ids)
        self._remove(self._views[max(same - self._first, 0) :])
        is_much = (len(ids) - self._last) * VIEW_WORK > SLICE_WORK
        if not self._views or (self._follows and is_much):
            self._begin_at_end()
        while was_at_end and not is_much and self._last < len(ids):
            self._insert(len(self._views))
        self._hint.setVisible(not ids)
        self._build()

    @Slot()
    def follow(self) -> None:
        """Go to the bottom, and along with what is added there."""
        self._follows = True
        if self._last < len(self._ids):
            self._begin_at_end()
            self._build()
        self._range_changed()

    @property
    def _last(self) -> int:
        """The index behind the last message that is there."""
        return self._first + len(self._views)

    def _begin_at_end(self) -> None:
        self._remove(list(self._views))
        self._first = len(self._ids)
        self._follows = True

    def _insert(self, place: int) -> int:
        """Make the message at a place among those that are there; return the work."""
        if place == 0:
            self._first -= 1
        view = self._make(self._ids[self._first + place])
        view.fell_behind.connect(self._building.start)
        self._views.insert(place, view)
        self._column.insertWidget(_ABOVE + place, view)
        view.show()
        return view.work

    def _remove(self, views: Sequence[MessageView]) -> None:
        for view in views:
            self._column.removeWidget(view)
            view.hide()
            view.deleteLater()
        gone = set(views)
        if gone and self._views[0] in gone and len(gone) < len(self._views):
            self._first += len(gone)
        self._views = [view for view in self._views if view not in gone]
        if self._anchor is not None and self._anchor[0] in gone:
            self._anchor = None

    @Slot()
    def _build(self) -> None:
        """Do a slice of what there is to do."""
        work = SLICE_WORK
        while work > 0 and (step := self._next_step()) is not None:
            work -= step()
        if self._next_step() is not None:
            self._building.start()
        n = self._first
        self._earlier.setText(f"{n:,} earlier message{'s' * (n != 1)}")
        self._earlier.setVisible(n > 0 and not self._building.isActive())

    def _next_step(self) -> Callable[[], int] | None:
        behind = next((view for view in reversed(self._views) if view.is_behind), None)
        if behind is not None:
            return behind.advance
        can_see = self.isVisible()  # otherwise nothing has its place yet
        if self._first > 0 and (self._has_room() or (can_see and self._above() < _AHEAD * self.height())):
            return lambda: self._insert(0)
        if self._last < len(self._ids) and can_see and self._below() < _AHEAD * self.height():
            return lambda: self._insert(len(self._views))
        return None

    def _has_room(self) -> bool:
        return sum(view.work for view in self._views) < MOST_WORK

    def _above(self) -> int:
        """Return how many pixels there are above what is seen, as far as messages were laid out."""
        return self.verticalScrollBar().value()

    def _below(self) -> int:
        bar = self.verticalScrollBar()
        return bar.maximum() - bar.value()

    def _drop_far(self) -> None:
        """Let messages go that are far from what is seen, at the end that is farther away, if there are too many."""
        excess = sum(view.work for view in self._views) - 2 * MOST_WORK
        if excess <= 0:
            return
        is_below = self._below() > self._above()
        far: list[MessageView] = []
        room = max(self._below(), self._above()) - 2 * _AHEAD * self.height()
        for view in reversed(self._views) if is_below else self._views:
            room -= view.height() + self._column.spacing()
            if excess <= 0 or room < 0:
                break
            far.append(view)
            excess -= view.work
        self._remove(far)

    def _top_of(self, view: MessageView) -> int:
        return view.mapTo(self._content, QPoint()).y()

    @Slot()
    def _range_changed(self) -> None:
        """Stay where the reader is: at the bottom, or at the message that is looked at."""
        bar = self.verticalScrollBar()
        self._is_adjusting = True
        if self._follows:
            bar.setValue(bar.maximum())
        elif self._anchor is not None:
            view, distance = self._anchor
            bar.setValue(self._top_of(view) - distance)
        self._is_adjusting = False
        if not self._building.isActive() and self._next_step() is not None:
            self._building.start()

    @Slot(int)
    def _scrolled(self, value: int) -> None:
        if self._is_adjusting:
            return
        bar = self.verticalScrollBar()
        self._follows = value >= bar.maximum() - _NEAR and self._last == len(self._ids)
        seen = (view for view in self._views if self._top_of(view) + view.height() > value)
        view = next(seen, None)
        self._anchor = (view, self._top_of(view) - value) if view is not None else None
        self._drop_far()
        if self._next_step() is not None:
            self._building.start()
