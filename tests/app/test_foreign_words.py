"""What strangers wrote, in the window: letters, never markup; told, never opened."""

import ast
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QPalette, QTextDocument
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QLabel, QMessageBox, QPushButton, QWidget
from pytestqt.qtbot import QtBot

import app
from app.library import LibraryEntry
from app.widgets.controls import label, message_box, push_button
from app.widgets.foreign_words import caption, legible, tool_tip, without_middle
from app.widgets.library_list import LibraryList
from app.widgets.link_dialog import LinkDialog
from app.widgets.links import can_open
from app.widgets.markdown_document import MarkdownDocument
from app.widgets.message_view import MessageView
from app.widgets.notice_bar import NoticeBar
from app.widgets.problem_dialog import ProblemDialog
from app.widgets.transcript_view import TranscriptView
from app.window import Window
from tests.app.driving import choose

PLACES = (
    "https://example.org/a.png",
    "file:///etc/hostname",
    "//host/share/x.png",
    "/etc/hostname",
    "x.png",
    ":/x",
    "",
)
MARKUP = "<b>bold</b><img src='/etc/hostname'>&lt;"


def fragments(document: QTextDocument) -> list[tuple[str, bool, str]]:
    """Return the text, whether it is an image, and the link of each run of letters."""
    found = []
    block = document.begin()
    while block.isValid():
        iterator = block.begin()
        while not iterator.atEnd():
            form = iterator.fragment().charFormat()
            found.append((iterator.fragment().text(), form.isImageFormat(), form.anchorHref()))
            iterator += 1
        block = block.next()
    return found


PARTS = st.one_of(
    st.builds("![{}]({})".format, st.sampled_from(["a", "", "two\nlines", "[b]", "*c* d"]), st.sampled_from(PLACES)),
    st.sampled_from(
        ["![a][r]", "[r]: /etc/hostname\n", "\n\n", "> ", "- ", "| a | b |\n|---|---|\n| ", " | ", "# ", "\ufffc"]
    ),
    st.sampled_from(["[![a](/etc/hostname)](https://example.org)", "<img src='/etc/hostname'>", "`![a](b)`", "```\n"]),
    st.text(max_size=5),
)


@given(st.lists(PARTS, max_size=12), st.integers(1, 20))
@example(["![a](/etc/hostname)"], 3)
@settings(max_examples=30, deadline=None)
def test_no_markdown_makes_an_image(parts: list[str], step: int) -> None:
    QApplication.instance() or QApplication([])
    document = MarkdownDocument(QPalette(), None)
    text = "".join(parts)
    for start in range(0, len(text), step):
        document.grow(text[start : start + step])
    assert not any(is_image for _text, is_image, _link in fragments(document))
    for kind in QTextDocument.ResourceType:
        assert all(document.resource(kind.value, QUrl(place)) is None for place in PLACES)


@pytest.mark.parametrize(
    ("markdown", "shown", "link"),
    [
        (
            "![A cat](https://example.org/a.png)",
            "Image: A cat (https://example.org/a.png)",
            "https://example.org/a.png",
        ),
        ("![two\nlines](//host/x.png)", "Image: two lines (//host/x.png)", ""),
        ("![](file:///etc/hostname)", "Image (file:///etc/hostname)", ""),
        (f"![a](x{'y' * 900})", f"Image: a ({without_middle('x' + 'y' * 900, 200)})", ""),
        ("`![](b)`", "![](b)", ""),
    ],
)
def test_an_image_is_told_with_its_address(qapp: QApplication, markdown: str, shown: str, link: str) -> None:
    document = MarkdownDocument(QPalette(), qapp)
    document.set_source(markdown)
    assert document.toPlainText() == shown
    assert [href for _text, _is_image, href in fragments(document) if href] == ([link] if link else [])


def test_nothing_named_in_a_message_is_opened(qtbot: QtBot, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opened: list[str] = []

    def wait_for_a_reader() -> None:
        with open(fifo, "wb"):  # goes on when somebody reads
            opened.append("by the window" if not looked.is_set() else "by the test")

    looked = threading.Event()
    writer = threading.Thread(target=wait_for_a_reader, daemon=True)
    writer.start()
    try:
        text = f"![a]({fifo}) ![b](file://{fifo}) <img src='{fifo}'>\n\n![c][r]\n\n[r]: {fifo}"
        transcript = TranscriptView(lambda id: MessageView(id, ("user", "assistant")[id], text))
        qtbot.addWidget(transcript)
        transcript.set_messages([0, 1])
        transcript.show()
        transcript.grab()
    finally:
        looked.set()
        with suppress(OSError):
            os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
        writer.join(10)
    assert opened == ["by the test"]


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("https://example.org/a?b#c", True),
        ("http://example.org", True),
        ("mailto:someone@example.org", True),
        ("HTTPS://EXAMPLE.ORG", True),
        ("file:///etc/hostname", False),
        ("//host/share", False),
        ("javascript:alert(1)", False),
        ("data:text/html,a", False),
        ("smb://host/share", False),
        ("ssh://host", False),
        ("x.png", False),
        ("https:///no/host", False),
        ("mailto:", False),
        ("", False),
    ],
)
def test_only_web_and_mail_can_be_opened(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, address: str, may: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    url = QUrl(address)
    assert can_open(url) == may
    dialog = LinkDialog(url)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    qtbot.addWidget(dialog)
    dialog.show()
    buttons = {button.text().replace("&", ""): button for button in dialog.findChildren(QPushButton)}
    assert ("Open" in buttons) == may
    qtbot.keyClick(dialog, Qt.Key.Key_Return)  # the default is to leave it
    assert not dialog.isVisible()
    assert opened == []
    if may:
        buttons["Open"].click()
        assert opened == [url.toString()]


def test_the_whole_address_is_shown_and_copied(qtbot: QtBot) -> None:
    long = "https://example.org@other.example/" + "a" * 3000 + "\u202e\u0430"  # turns the line; a Cyrillic a
    dialog = LinkDialog(QUrl(long))
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    qtbot.addWidget(dialog)
    assert dialog.address == "https://example.org@other.example/" + "a" * 3000 + "%E2%80%AE%D0%B0"
    assert "other.example" in dialog.findChildren(QLabel)[0].text()
    (buttons,) = dialog.findChildren(QDialogButtonBox)
    next(button for button in buttons.buttons() if "Copy" in button.text()).click()
    assert QGuiApplication.clipboard().text() == dialog.address


def test_a_click_on_a_link_asks(run: Callable[..., None]) -> None:
    def click(window: Window):
        window.chat._show_link(QUrl("https://example.org"))
        yield lambda: window.findChildren(LinkDialog)
        (dialog,) = window.findChildren(LinkDialog)
        yield dialog.isVisible
        assert dialog.address == "https://example.org"
        dialog.reject()

    run(click)


def test_labels_show_the_letters_that_they_are_given(qtbot: QtBot) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    widgets = [
        label(MARKUP, parent),
        NoticeBar(MARKUP, "error", parent),
        ProblemDialog(MARKUP, MARKUP, MARKUP, parent),
        message_box("title", MARKUP, MARKUP, parent),
    ]
    for widget in widgets:
        labels = [widget] if isinstance(widget, QLabel) else widget.findChildren(QLabel)
        assert labels
        assert {found.textFormat() for found in labels} == {Qt.TextFormat.PlainText}
        assert isinstance(widget, ProblemDialog | QMessageBox) or MARKUP in [found.text() for found in labels]


def test_tool_tips_and_captions_too(qtbot: QtBot) -> None:
    listed = LibraryList()
    qtbot.addWidget(listed)
    listed.set_entries([LibraryEntry("/a.slot", MARKUP, 0.0, 1)])
    tip = listed._view.model().index(0, 0).data(Qt.ItemDataRole.ToolTipRole)
    document = QTextDocument()
    document.setHtml(tip)
    assert document.toPlainText().startswith(MARKUP)
    assert tool_tip("") == ""
    button = push_button(caption("Load A&B"), listed)
    assert button.text() == "Load A&&B"


@given(st.text(max_size=300), st.integers(3, 100))
def test_what_is_cut_keeps_both_ends(text: str, longest: int) -> None:
    cut = without_middle(text, longest)
    assert len(cut) <= longest
    if cut != text:
        before, after = cut[: longest - longest // 2 - 1], cut[-(longest // 2) :]
        assert text.startswith(before)
        assert text.endswith(after)


def test_millions_of_letters_are_cut() -> None:
    assert len(legible("x" * 1_000_000)) <= 600
    assert max(map(len, legible("y" * 5000 + " z" * 5000).split())) <= 80
    path = "/home/somebody/.local/share/dormouse/conversations/2026-11-30 22.01 93c2.slot"
    assert legible(path) == path


def test_labels_and_tool_tips_are_made_in_one_place() -> None:
    """Nobody else makes a label, which would guess whether its text is HTML, or writes a tooltip past the escape."""
    folder = Path(app.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = f"{path.relative_to(folder)}:{node.lineno}"
            if name in ("QLabel", "QMessageBox", "setHtml", "insertHtml", "appendHtml"):
                assert path.name == "controls.py", place
            if name in ("setToolTip", "showText"):
                assert "tool_tip(" in ast.unparse(node), place


def test_the_dialog_about_a_deletion_shows_the_path_as_it_is(run: Callable[..., None], tmp_path: Path) -> None:
    def look(window: Window):
        window._library._ask_to_remove(f"/{MARKUP}.slot")
        yield lambda: window.findChildren(QMessageBox)
        (box,) = window.findChildren(QMessageBox)
        assert {found.textFormat() for found in box.findChildren(QLabel)} == {Qt.TextFormat.PlainText}
        box.reject()
        choose(window, "About Dormouse")
        yield lambda: [found for found in window.findChildren(QMessageBox) if found is not box]
        for found in window.findChildren(QMessageBox):
            found.reject()

    run(look)
