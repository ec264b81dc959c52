"""Whatever strangers write, the window does a little of it at a time: the work of each event is bounded."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PySide6.QtGui import QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QPushButton
from pytestqt.qtbot import QtBot

from app.widgets.code_formats import LONGEST, code_spans
from app.widgets.markdown_document import MOST_WORK, MarkdownDocument
from app.widgets.markdown_sections import LONGEST_LINE, SECTION_WORK, SLICE_WORK, Piece, Sections
from app.widgets.message_view import VIEW_WORK, MessageView
from app.widgets.transcript_view import MOST_WORK as MOST_OF_ALL
from app.widgets.transcript_view import TranscriptView
from app.widgets.whole_text import WholeText

HOSTILE = {
    "marks": "*_" * 50_000,
    "tags": "<div>" * 50_000,
    "entities": "&amp;" * 200_000,
    "columns": "|" + "a|" * 2000 + "\n|" + "-|" * 2000 + "\n|" + "b|" * 2000 + "\n",
    "rows": "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 5000,
    "cells of missing columns": "|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + "|b\n" * 100,
    "quotes": "> " * 2000 + "x",
    "markers": "- " * 20_000 + "x",
    "nested lists": "".join("  " * depth + "- a\n" for depth in range(100)),
    "one line": "Many words, again and again. " * 100_000,
    "one word": "a" * 1_000_000,
    "short lines": "ab\n" * 50_000,
    "paragraphs": "ab\n\n" * 20_000,
    "code": "```python\n" + "def f(x): return x + 1\n" * 5000 + "```\n",
    "code without end": "~~~\n" + "x" * 100_000,
    "returns": "a\r" * 50_000,
    "separators": "a\u2029\ufdd0" * 20_000,
    "images": "![a](b)" * 20_000,
    "addresses": "www.a.b " * 20_000,
    "blank": "\n" * 100_000,
    "spaces": " " * 500_000,
}
MARKS = (
    "*",
    "_",
    "`",
    "[",
    "](",
    ")",
    "<a>",
    "&lt;",
    "|",
    "|---|\n",
    "-",
    ":",
    "> ",
    "- ",
    "1. ",
    "# ",
    "```",
    "~~~\n",
)
OTHERS = ("a", "word ", "  ", "\n", "\n\n", "\r", "\r\n", "\U0001f600", "www.", "\u2028", "\x00")
PARTS = st.sampled_from((*MARKS, *OTHERS))
TEXTS = st.lists(st.tuples(PARTS, st.integers(1, 40)), max_size=12).flatmap(
    lambda parts: st.integers(1, 400).map(lambda n: "".join(part * times for part, times in parts) * n)
)


def pieces(text: str, step: int, *, is_markdown: bool = True) -> Iterator[Piece]:
    """Return the pieces of a text that grows in steps, and the rest at its end."""
    sections = Sections(is_markdown=is_markdown)
    for start in range(0, len(text), step):
        sections.add(text[start : start + step])
        yield from iter(sections.take, None)
        if (rest := sections.rest()) is not None:
            check(rest)
    if (rest := sections.rest()) is not None:
        yield rest


def check(piece: Piece) -> None:
    """Check a piece's cost against counts of what costs."""
    assert piece.work <= SECTION_WORK + SLICE_WORK
    letters, lines = len(piece.text), piece.text.count("\n")
    assert letters <= SECTION_WORK + SLICE_WORK
    assert 40 * lines <= SECTION_WORK + SLICE_WORK
    if piece.kind == "formatted":
        assert piece.work <= SECTION_WORK
        outside = re.sub(r"(?ms)^ {0,3}(```|~~~).*", "", piece.text)
        assert 10 * len(re.findall(r"[*_`\[\]!<>&|]", outside)) <= SECTION_WORK
        assert max(map(len, piece.text.split()), default=0) <= 1000


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("step", [1 << 20, 5000])
def test_no_piece_of_a_text_costs_much(kind: str, step: int) -> None:
    text = HOSTILE[kind]
    found = list(pieces(text, step))
    for piece in found:
        check(piece)
    assert "".join(piece.text for piece in found) == text


@given(TEXTS, st.integers(500, 20_000), st.booleans())
@example("-" + " " * 30_000 + "x", 100, True)
@settings(max_examples=60, deadline=None)
def test_nothing_gets_lost_whatever_the_text(text: str, step: int, is_markdown: bool) -> None:
    found = list(pieces(text, step, is_markdown=is_markdown))
    for piece in found:
        check(piece)
        assert is_markdown or piece.kind == "plain"
    assert "".join(piece.text for piece in found) == text


def test_what_people_write_is_formatted() -> None:
    table = "| a | b | c | d |\n|---|---|---|---|\n" + "| one | two | three | **four** |\n" * 30
    code = "```python\n" + "def f(x):\n    return x + 1  # one more\n" * 150 + "```\n"
    letter = "Some *words* in a line, `code` and a [link](https://example.org).\n" * 120
    items = "- one, and\n  - another one with **bold** words\n" * 100
    for text in (table, code, letter, items):
        assert [piece.kind for piece in pieces(text, 100)] == ["formatted"]


def test_long_code_stays_code_to_its_end_and_nothing_else_becomes_it() -> None:
    found = list(pieces("Some words.\n\n" + HOSTILE["code"] + "\n\n*More* words.\n", 5000))
    assert [piece.kind for piece in found] == ["formatted", *["code"] * (len(found) - 2), "formatted"]


def test_a_paragraph_before_too_many_marks_is_formatted() -> None:
    found = list(pieces("*Some* words.\n\n" + HOSTILE["marks"], 5000))
    assert [piece.kind for piece in found] == ["formatted", *["plain"] * (len(found) - 1)]


def all_lines(document: MarkdownDocument) -> list[int]:
    """Return the lengths of all lines."""
    lengths, block = [], document.begin()
    while block.isValid():
        lengths.append(block.length())
        block = block.next()
    return lengths


@pytest.mark.parametrize("kind", HOSTILE)
def test_each_call_shows_a_slice_and_all_of_them_a_bounded_part(qapp: QApplication, kind: str) -> None:
    document = MarkdownDocument(QPalette(), qapp)
    document.set_source(HOSTILE[kind])
    calls = 1
    while document.is_behind:
        assert document.advance() <= SLICE_WORK + SECTION_WORK
        calls += 1
    assert calls <= MOST_WORK // SLICE_WORK + 2
    assert document.work <= MOST_WORK
    assert max(all_lines(document)) <= SECTION_WORK + 1
    if document.is_folded or kind in ("one line", "one word"):
        assert max(all_lines(document)) <= LONGEST_LINE + 1
    assert document.is_folded or len(HOSTILE[kind]) <= MOST_WORK


def test_plain_text_is_shown_to_the_letter(qapp: QApplication) -> None:
    document = MarkdownDocument(QPalette(), qapp)
    text = "a *b*\n\n\n  c\r\nd" + "\n" * 3
    document.set_source(text, is_markdown=False)
    assert document.toPlainText() == text.replace("\r", "")
    document.set_source("x" * 5000 + "\n" + "y" * 10, is_markdown=False)
    assert [n - 1 for n in all_lines(document)] == [LONGEST_LINE, LONGEST_LINE, 1000, 10]


def test_behind_what_is_too_much_formatting_goes_on(qapp: QApplication) -> None:
    document = MarkdownDocument(QPalette(), qapp)
    document.set_source("*a* " * 2000 + "\n\n# Title\n\n" + "*b* and more")
    while document.is_behind:
        document.advance()
    assert document.toPlainText().startswith("*a* *a*")
    assert document.toPlainText().endswith("Title\nb and more")


def test_a_long_message_is_folded_and_can_be_read_whole(qtbot: QtBot) -> None:
    text = "Many words, again and again. " * 100_000
    view = MessageView(1, "assistant", "")
    qtbot.addWidget(view)
    view.show()
    asked: list[str] = []
    view.whole_requested.connect(asked.append)
    (button,) = (b for b in view.findChildren(QPushButton) if b.text().endswith("Show All"))
    assert not button.isVisible()
    view.set_text(text)
    while view.is_behind:
        view.advance()
    assert button.isVisible()
    assert "Show All (2.9 MB)" in button.text()
    button.click()
    assert asked == [text]
    dialog = WholeText(text)
    qtbot.addWidget(dialog)
    qtbot.waitUntil(lambda: dialog.is_filled, timeout=60_000)
    (shown,) = dialog.findChildren(QPlainTextEdit)
    assert shown.toPlainText().replace("\n", "") == text
    (copy,) = (b for b in dialog.findChildren(QPushButton) if "Copy" in b.text())
    copy.click()
    assert QGuiApplication.clipboard().text() == text


class Transcript(TranscriptView):
    """Counts what is made in each event."""

    def __init__(self, texts: list[str]) -> None:
        self.made = [0]
        self.texts = texts
        super().__init__(self.make)
        self._building.timeout.disconnect()
        self._building.timeout.connect(self.next_event)

    def make(self, id: int) -> MessageView:
        self.made[-1] += 1
        return MessageView(id, "assistant", self.texts[id])

    def next_event(self) -> None:
        self.made.append(0)
        self._build()

    @property
    def is_done(self) -> bool:
        return not self._building.isActive() and self._next_step() is None

    def there(self) -> list[int]:
        return [view.id for view in self.views]


@pytest.fixture
def long(qtbot: QtBot) -> Transcript:
    transcript = Transcript([f"Message {number}, with some *words*." for number in range(160)])
    qtbot.addWidget(transcript)
    transcript.resize(500, 400)
    transcript.show()
    transcript.set_messages(range(160))
    qtbot.waitUntil(lambda: transcript.is_done)
    return transcript


def test_of_many_messages_the_last_ones_are_made_a_few_at_a_time(long: Transcript) -> None:
    assert max(long.made) <= SLICE_WORK // VIEW_WORK + 1
    n = len(long.there())
    assert n <= MOST_OF_ALL // VIEW_WORK + 1
    assert long.there() == list(range(160 - n, 160))
    bar = long.verticalScrollBar()
    assert bar.value() == bar.maximum()


def test_more_are_made_as_the_reader_comes_near(long: Transcript, qtbot: QtBot) -> None:
    bar = long.verticalScrollBar()
    seen = long.views[0]
    bar.setValue(0)
    place = seen.mapTo(long.viewport(), seen.rect().topLeft()).y()
    qtbot.waitUntil(lambda: long.is_done)
    assert long.there()[0] < seen.id
    qtbot.waitUntil(lambda: seen.mapTo(long.viewport(), seen.rect().topLeft()).y() == place)  # it stays there
    for _ in range(100):
        if long.there()[0] == 0:
            break
        bar.setValue(0)
        qtbot.waitUntil(lambda: long.is_done)
    assert long.there()[0] == 0
    assert max(long.made) <= SLICE_WORK // VIEW_WORK + 1
    assert len(long.there()) <= 2 * MOST_OF_ALL // VIEW_WORK + 20  # those far away have gone
    assert long.there() == list(range(len(long.there())))
    long.follow()
    qtbot.waitUntil(lambda: long.is_done and bar.value() == bar.maximum())
    assert long.there()[-1] == 159


def test_what_comes_while_the_reader_is_far_up_is_there_later(long: Transcript, qtbot: QtBot) -> None:
    long.texts.append("The newest one")
    bar = long.verticalScrollBar()
    bar.setValue(0)
    qtbot.waitUntil(lambda: long.is_done)
    before = long.views
    long.set_messages(range(161))
    assert long.views[: len(before)] == before
    bar.setValue(bar.maximum())
    qtbot.waitUntil(lambda: long.is_done)
    assert long.there()[-1] == 160


def test_another_branch_takes_the_place_of_what_differs(long: Transcript, qtbot: QtBot) -> None:
    kept = long.views[:3]
    ids = [*range(long.there()[0] + 3), *range(5)]
    long.set_messages(ids)
    qtbot.waitUntil(lambda: long.is_done)
    assert long.there() == ids[-len(long.there()) :]
    assert long.views[-8:-5] == kept
    long.set_messages([7])
    assert long.there() == [7]
    long.set_messages([])
    assert long.there() == []


@pytest.mark.parametrize("language", ["python", "rust", "js", "sql", "html", "bash", "c", "yaml", "tex"])
@given(code=st.text(alphabet="ab1 \"'`#/*-<>!@$\\\n\U0001f600", max_size=300))
@settings(max_examples=15, deadline=None)
def test_colors_are_of_words_one_behind_the_other(language: str, code: str) -> None:
    end = 0
    for start, length, _kind in code_spans(code, language):
        assert start >= end
        assert length > 0
        end = start + length
    assert end <= len(code.encode("utf-16-le")) // 2
    assert code_spans("x = 1 " * LONGEST, language) == []
