"""A text that is as high as it needs to be."""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QSizeF, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from app.widgets.markdown_document import MarkdownDocument


class TextView(QTextBrowser):
    """Shows plain text or Markdown without scrolling, a slice at a time; links are told, never followed."""

    link_activated = Signal(QUrl)
    fell_behind = Signal()
    """There is more to show: see `MarkdownDocument.advance`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._markdown = MarkdownDocument(self.palette(), self)
        self.setDocument(self._markdown)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.viewport().setAutoFillBackground(False)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextBrowserInteraction | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setOpenLinks(False)
        self.anchorClicked.connect(self.link_activated)
        self._markdown.documentLayout().documentSizeChanged.connect(self._fit)

    @property
    def shown(self) -> MarkdownDocument:
        """What is shown, and how much of it."""
        return self._markdown

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and self._markdown.source:
            self._markdown.set_palette(self.palette())
            self.fell_behind.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the whole transcript scrolls

    @Slot(QSizeF)
    def _fit(self, size: QSizeF) -> None:
        self.setFixedHeight(math.ceil(size.height()) + 2)
