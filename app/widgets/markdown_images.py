"""Images in Markdown, as words: no file and no address is opened because a text names it."""

from __future__ import annotations

from PySide6.QtCore import QUrl
from PySide6.QtGui import QTextCharFormat, QTextCursor, QTextDocument, QTextFormat, QTextImageFormat

from app.widgets.foreign_words import without_middle
from app.widgets.links import can_open, written

_OBJECT = "\ufffc"  # stands for an image in a document's text
_LONGEST = 200
_UNSEEN = "\u200b"  # a letter without width


def describe_images(markdown: str) -> str:
    """Return a text whose images all have a description, if only an unseen letter: Qt leaves out those without."""
    has_code = "`" in markdown or "~~~" in markdown  # which is to be copied as it is
    return markdown if has_code else markdown.replace("![](", f"![{_UNSEEN}](")


def spell_out_images(document: QTextDocument) -> None:
    """Replace each image by its description and its address, as a link where that may be opened.

    Images are not only left unloaded: laying one out, Qt takes its name for that of a file, past `loadResource`.
    """
    cursor = document.find(_OBJECT)
    while not cursor.isNull():
        if cursor.charFormat().isImageFormat():
            image = cursor.charFormat().toImageFormat()
            description = _description(image) + _rest_of_description(cursor, image.name())
            _insert(cursor, " ".join(description.replace(_UNSEEN, "").split()), image.name())
        cursor = document.find(_OBJECT, cursor)


def _description(image: QTextImageFormat) -> str:
    return str(image.property(QTextFormat.Property.ImageAltText.value) or "")


def _rest_of_description(cursor: QTextCursor, name: str) -> str:
    """Extend a selection over the further images of this name, which Qt makes of a description of several parts."""
    description = ""
    ahead = QTextCursor(cursor)
    ahead.setPosition(cursor.selectionEnd())
    while ahead.movePosition(QTextCursor.MoveOperation.NextCharacter, QTextCursor.MoveMode.KeepAnchor):
        image = ahead.charFormat().toImageFormat()
        if not image.isValid() or image.name() != name:
            break
        description += f" {_description(image)}"
        cursor.setPosition(ahead.position(), QTextCursor.MoveMode.KeepAnchor)
    return description


def _insert(cursor: QTextCursor, description: str, name: str) -> None:
    plain = QTextCharFormat()
    plain.setFontItalic(True)
    address = QTextCharFormat(plain)
    url = QUrl(name)
    if can_open(url):
        address.setAnchor(True)
        address.setAnchorHref(written(url))
        address.setFontUnderline(True)
    cursor.insertText(f"Image: {without_middle(description, _LONGEST)} (" if description else "Image (", plain)
    cursor.insertText(without_middle(name, _LONGEST), address)
    cursor.insertText(")", plain)
