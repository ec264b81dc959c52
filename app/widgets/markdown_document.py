"""A text, of Markdown or as it is, as a document that can grow at its end and shows one slice at a time."""

from __future__ import annotations

from PySide6.QtCore import QObject, QUrl
from PySide6.QtGui import (
    QFontDatabase,
    QPalette,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextDocumentFragment,
    QTextOption,
)

from app.widgets.markdown_blocks import LINE_HEIGHT, decorate
from app.widgets.markdown_images import describe_images, spell_out_images
from app.widgets.markdown_sections import LONGEST_LINE, SLICE_WORK, Piece, Sections, lines_of

MOST_WORK = 100_000
"""What is shown of one text at most: Qt lays all of it out again when its width changes."""

_FEATURES = QTextDocument.MarkdownFeature.MarkdownDialectGitHub | QTextDocument.MarkdownFeature.MarkdownNoHTML


class MarkdownDocument(QTextDocument):
    """Renders what was added; only the part that more text may change is rendered again. Loads no file or address.

    Each call shows about a slice: `is_behind` tells whether `advance` has more to do. What is over `MOST_WORK` is
    not shown at all, and `is_folded` then.
    """

    def __init__(self, palette: QPalette, parent: QObject | None) -> None:
        super().__init__(parent)
        self.setUndoRedoEnabled(False)
        self.setDocumentMargin(0)
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setDefaultTextOption(option)
        self._palette = palette
        self._is_markdown = True
        self._sections = Sections()
        self._work = 0
        self._open_at = 0  # position in the document where the rest begins
        self._is_behind = self._is_folded = False
        self._is_anew = False  # what is shown is to go

    def loadResource(self, _type: int, _name: QUrl | str) -> None:
        return None

    @property
    def source(self) -> str:
        """The text as it was written."""
        return self._sections.text

    @property
    def is_behind(self) -> bool:
        """Whether `advance` would show more."""
        return self._is_behind

    @property
    def is_folded(self) -> bool:
        """Whether the end of the text is not shown, as there is too much of it."""
        return self._is_folded

    @property
    def work(self) -> int:
        """What all that is shown costs."""
        return self._work

    def set_source(self, text: str, *, is_markdown: bool = True) -> None:
        """Show `text` and nothing else."""
        self._is_markdown = is_markdown
        self._begin(text)
        self.advance()

    def set_palette(self, palette: QPalette) -> None:
        """Render everything in other colors, from the next `advance` on."""
        self._palette = palette
        self._begin(self.source)

    def grow(self, text: str) -> None:
        """Add `text` at the end."""
        self._sections.add(text)
        self._is_behind = not self._is_folded
        self.advance()

    def advance(self, work: int = SLICE_WORK) -> int:
        """Show more of the text, about as much as this work allows, but something in any case; return what it took."""
        if not self._is_behind:
            return 0
        done = 0
        cursor = QTextCursor(self)
        cursor.beginEditBlock()
        if self._is_anew:
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.removeSelectedText()
            self._is_anew = False
        while done < work and (piece := self._sections.take()) is not None:
            done += piece.work
            if not self._place(cursor, piece):
                break
            self._work += piece.work
            self._open_at = self.characterCount() - 1
        else:
            if done < work:
                done += self._place_rest(cursor)
        cursor.endEditBlock()
        return max(done, 1)

    def _begin(self, text: str) -> None:
        """Forget what was shown; it goes when the first slice takes its place."""
        self._sections = Sections(is_markdown=self._is_markdown)
        self._sections.add(text)
        self._work = self._open_at = 0
        self._is_behind = self._is_anew = True
        self._is_folded = False

    def _place_rest(self, cursor: QTextCursor) -> int:
        """Show what more text may change, until more comes."""
        rest = self._sections.rest()
        self._is_behind = False
        if rest is None:
            self._clear_rest(cursor)
            return 0
        self._place(cursor, rest)
        return rest.work

    def _place(self, cursor: QTextCursor, piece: Piece) -> bool:
        """Replace everything from `_open_at` on, unless that makes the text too long."""
        self._clear_rest(cursor)
        if self._work and self._work + piece.work > MOST_WORK:
            self._is_folded, self._is_behind = True, False
            return False
        if piece.kind == "formatted":
            self._insert_formatted(cursor, piece.text)
        else:
            self._insert_plain(cursor, piece)
        return True

    def _clear_rest(self, cursor: QTextCursor) -> None:
        cursor.setPosition(self._open_at)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()

    def _insert_formatted(self, cursor: QTextCursor, markdown: str) -> None:
        rendered = QTextDocument()
        rendered.setDefaultFont(self.defaultFont())
        rendered.setMarkdown(describe_images(markdown), _FEATURES)
        if rendered.isEmpty():
            return
        spell_out_images(rendered)
        _begin_block(cursor, QTextBlockFormat())
        number = cursor.block().blockNumber()
        cursor.insertFragment(QTextDocumentFragment(rendered))
        first = self.findBlockByNumber(number)
        wanted = rendered.begin()
        if not first.text() and wanted.text():  # a list does not begin in the block that it is inserted in
            QTextCursor(first).deleteChar()
            first = self.findBlockByNumber(number)
        if wanted.textList() is None:
            QTextCursor(first).setBlockFormat(wanted.blockFormat())
        decorate(first, self._palette)

    def _insert_plain(self, cursor: QTextCursor, piece: Piece) -> None:
        """Insert the letters as they are, in lines that are cut where they are too long to be laid out as one."""
        letters = QTextCharFormat()
        if piece.kind == "code":
            letters.setFontFamilies(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).families())
            letters.setFontFixedPitch(True)
        if piece.begins:
            block = QTextBlockFormat()
            if piece.kind == "plain":
                block.setLineHeight(LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
            _begin_block(cursor, block)
        cursor.insertText(lines_of(piece.text, LONGEST_LINE - cursor.positionInBlock()), letters)


def _begin_block(cursor: QTextCursor, block: QTextBlockFormat) -> None:
    """Begin a paragraph: what is left of the part before would stay the heading or list item that it was."""
    if cursor.atBlockStart():
        cursor.setBlockFormat(block)
        cursor.setBlockCharFormat(QTextCharFormat())
    else:
        cursor.insertBlock(block, QTextCharFormat())
