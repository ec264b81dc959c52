"""A Markdown text as a rich document that can grow at its end."""

from __future__ import annotations

from PySide6.QtCore import QObject, QUrl
from PySide6.QtGui import (
    QPalette,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextDocumentFragment,
    QTextFormat,
    QTextFrameFormat,
    QTextOption,
)

from app.widgets.code_formats import code_spans
from app.widgets.colors import code_colors, mixed
from app.widgets.markdown_images import describe_images, spell_out_images
from app.widgets.markdown_sections import closed_sections

_FEATURES = QTextDocument.MarkdownFeature.MarkdownDialectGitHub | QTextDocument.MarkdownFeature.MarkdownNoHTML
_LINE_HEIGHT = 125  # percent
_LANGUAGE = QTextFormat.Property.BlockCodeLanguage
_CODE = QTextFormat.Property.BlockCodeFence


class MarkdownDocument(QTextDocument):
    """Renders what was added; only the part that more text may change is rendered again. Loads no file or address."""

    def __init__(self, palette: QPalette, parent: QObject) -> None:
        super().__init__(parent)
        self.setUndoRedoEnabled(False)
        self.setDocumentMargin(0)
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setDefaultTextOption(option)
        self._palette = palette
        self._source = ""
        self._closed = 0  # length of the source that is rendered for good
        self._open_at = 0  # position in the document where the rest begins

    def loadResource(self, _type: int, _name: QUrl | str) -> None:
        return None

    @property
    def source(self) -> str:
        """The Markdown text."""
        return self._source

    def set_source(self, text: str) -> None:
        """Show `text` and nothing else."""
        self._source, self._closed, self._open_at = "", 0, 0
        self.setLayoutEnabled(False)
        self.grow(text)
        self.setLayoutEnabled(True)

    def set_palette(self, palette: QPalette) -> None:
        """Render everything in other colors."""
        self._palette = palette
        self.set_source(self._source)

    def grow(self, text: str) -> None:
        """Add `text` at the end."""
        self._source += text
        tail = self._source[self._closed :]
        for section in closed_sections(tail):
            self._render(section)
            self._closed += len(section)
            self._open_at = self.characterCount() - 1
        self._render(self._source[self._closed :])

    def _render(self, markdown: str) -> None:
        """Replace everything from `_open_at` on."""
        rendered = QTextDocument()
        rendered.setDefaultFont(self.defaultFont())
        rendered.setMarkdown(describe_images(markdown), _FEATURES)
        spell_out_images(rendered)
        cursor = QTextCursor(self)
        cursor.beginEditBlock()
        cursor.setPosition(self._open_at)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        if not rendered.isEmpty():
            self._insert(cursor, rendered)
        cursor.endEditBlock()

    def _insert(self, cursor: QTextCursor, rendered: QTextDocument) -> None:
        if cursor.atBlockStart():  # what is left of the part before would stay the heading or list item that it was
            cursor.setBlockFormat(QTextBlockFormat())
            cursor.setBlockCharFormat(QTextCharFormat())
        else:
            cursor.insertBlock(QTextBlockFormat(), QTextCharFormat())
        start = cursor.block()
        number = start.blockNumber()
        cursor.insertFragment(QTextDocumentFragment(rendered))
        first = self.findBlockByNumber(number)
        wanted = rendered.begin()
        if not first.text() and wanted.text():  # a list does not begin in the block that it is inserted in
            QTextCursor(first).deleteChar()
            first = self.findBlockByNumber(number)
        if wanted.textList() is None:
            QTextCursor(first).setBlockFormat(wanted.blockFormat())
        self._decorate(first)

    def _decorate(self, start: QTextBlock) -> None:
        """Frame and color the source code from `start` on, and set the distances of all blocks."""
        position = start.position()
        for first, last in reversed(_code_runs(start)):
            self._color(first, last)
            cursor = QTextCursor(first)
            cursor.setPosition(last.position() + last.length() - 1, QTextCursor.MoveMode.KeepAnchor)
            cursor.insertFrame(self._code_frame())
        block = self.findBlock(position)
        while block.isValid():
            _space(block)
            block = block.next()

    def _code_frame(self) -> QTextFrameFormat:
        frame = QTextFrameFormat()
        frame.setBackground(mixed(self._palette, 0.06))
        frame.setBorder(1)
        frame.setBorderBrush(mixed(self._palette, 0.14))
        frame.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
        frame.setPadding(8)
        frame.setTopMargin(6)
        frame.setBottomMargin(6)
        return frame

    def _color(self, first: QTextBlock, last: QTextBlock) -> None:
        """Color the words of the source code from one block to another."""
        cursor = QTextCursor(first)
        cursor.setPosition(last.position() + last.length() - 1, QTextCursor.MoveMode.KeepAnchor)
        code = cursor.selectedText().replace("\u2029", "\n")
        colors = code_colors(self._palette)
        for start, length, kind in code_spans(code, first.blockFormat().stringProperty(_LANGUAGE)):
            word = QTextCharFormat()
            word.setForeground(colors[kind])
            cursor.setPosition(first.position() + start)
            cursor.setPosition(first.position() + start + length, QTextCursor.MoveMode.KeepAnchor)
            cursor.mergeCharFormat(word)


def _code_runs(block: QTextBlock) -> list[tuple[QTextBlock, QTextBlock]]:
    """Return the first and the last block of each piece of source code from `block` on."""
    runs: list[tuple[QTextBlock, QTextBlock]] = []
    in_code = False
    while block.isValid():
        is_code = block.blockFormat().hasProperty(_CODE)
        if is_code:
            runs[-1:] = [(runs[-1][0], block)] if in_code else [*runs[-1:], (block, block)]
        block, in_code = block.next(), is_code
    return runs


def _space(block: QTextBlock) -> None:
    cursor = QTextCursor(block)
    block_format = block.blockFormat()
    if cursor.currentTable() is not None:
        block_format.setTopMargin(0)
        block_format.setBottomMargin(0)
    elif cursor.currentFrame().parentFrame() is not None:
        block_format.setNonBreakableLines(False)
    elif not block.text():  # Qt needs one before and behind each frame and table
        block_format = QTextBlockFormat()
        block_format.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    else:
        block_format.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        if block_format.headingLevel():
            block_format.setTopMargin(12)
            block_format.setBottomMargin(4)
    cursor.setBlockFormat(block_format)
