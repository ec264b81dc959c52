"""How the paragraphs of a rendered Markdown text look: distances, and frames and colors for source code."""

from __future__ import annotations

from PySide6.QtGui import (
    QPalette,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFormat,
    QTextFrameFormat,
    QTextLayout,
)

from app.widgets.code_formats import code_spans
from app.widgets.colors import code_colors, mixed

LINE_HEIGHT = 125
"""In percent."""

_LANGUAGE = QTextFormat.Property.BlockCodeLanguage
_CODE = QTextFormat.Property.BlockCodeFence


def decorate(start: QTextBlock, palette: QPalette) -> None:
    """Frame and color the source code from `start` on, and set the distances of all blocks."""
    document = start.document()
    position = start.position()
    for first, last in reversed(_code_runs(start)):
        number = first.blockNumber()
        n = last.blockNumber() - number + 1
        language = first.blockFormat().stringProperty(_LANGUAGE)
        cursor = QTextCursor(first)
        cursor.setPosition(last.position() + last.length() - 1, QTextCursor.MoveMode.KeepAnchor)
        code = cursor.selectedText().replace("\u2029", "\n")
        frame = cursor.insertFrame(_code_frame(palette))
        _color(frame.firstCursorPosition().block(), n, code, language, palette)
    block = document.findBlock(position)
    while block.isValid():
        _space(block)
        block = block.next()


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


def _code_frame(palette: QPalette) -> QTextFrameFormat:
    frame = QTextFrameFormat()
    frame.setBackground(mixed(palette, 0.06))
    frame.setBorder(1)
    frame.setBorderBrush(mixed(palette, 0.14))
    frame.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    frame.setPadding(8)
    frame.setTopMargin(6)
    frame.setBottomMargin(6)
    return frame


def _color(block: QTextBlock, n: int, code: str, language: str, palette: QPalette) -> None:
    """Color the words of source code in `n` blocks.

    The colors are given to the layouts of the blocks, as a syntax highlighter does: to change the document's own
    formats takes Qt thirty times as long.
    """
    colors = {kind: QTextCharFormat() for kind in code_colors(palette)}
    for kind, color in code_colors(palette).items():
        colors[kind].setForeground(color)
    spans = code_spans(code, language)[::-1]
    begin = 0
    for _ in range(n if spans else 0):
        end = begin + block.length()
        ranges = []
        while spans and spans[-1][0] < end:
            start, length, kind = spans[-1]
            ranges.append(_range(max(start - begin, 0), min(start + length, end) - max(start, begin), colors[kind]))
            if start + length > end:  # goes on in the next line
                break
            spans.pop()
        block.layout().setFormats(ranges)
        begin, block = end, block.next()


def _range(start: int, length: int, form: QTextCharFormat) -> QTextLayout.FormatRange:
    made = QTextLayout.FormatRange()
    made.start, made.length, made.format = start, length, form
    return made


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
        block_format.setLineHeight(LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        if block_format.headingLevel():
            block_format.setTopMargin(12)
            block_format.setBottomMargin(4)
    cursor.setBlockFormat(block_format)
