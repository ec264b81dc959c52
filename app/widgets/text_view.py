"""A text that is as high as it needs to be."""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QSizeF, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from app.widgets.markdown_document import MarkdownDocument


class TextView(QTextBrowser):
    """Shows plain text or Markdown without scrolling; links are told, never followed."""

    link_activated = Signal(QUrl)

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

    def set_markdown(self, text: str) -> None:
        """Show a Markdown text."""
        self._markdown.set_source(text)

    def grow(self, text: str) -> None:
        """Add to the Markdown text."""
        self._markdown.grow(text)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and self._markdown.source:
            self._markdown.set_palette(self.palette())

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the whole transcript scrolls

    @Slot(QSizeF)
    def _fit(self, size: QSizeF) -> None:
        self.setFixedHeight(math.ceil(size.height()) + 2)
