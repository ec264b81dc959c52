"""Where a Markdown text can be cut so that its parts render as they do together."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CONTINUES = re.compile(r"\s|[-*+>|]|\d{1,9}[.)]")  # a list, a quote, a table, or an indented paragraph of one


def closed_sections(text: str) -> list[str]:
    """Return the parts of the beginning of a growing text that more text can't change.

    A part ends behind a blank line outside of code fences that is followed by the beginning of an ordinary
    paragraph, a heading or a fence: what may continue a list or a quote stays with it.
    """
    sections = []
    begin = position = 0
    fence = ""
    after_blank = False
    for line in text.splitlines(keepends=True):
        if after_blank and not fence and line.strip() and not _CONTINUES.match(line):
            sections.append(text[begin:position])
            begin = position
        marker = _FENCE.match(line)
        if marker and not fence:
            fence = marker[1]
        elif marker and marker[1].startswith(fence) and not line[marker.end() :].strip():
            fence = ""
        after_blank = not line.strip()
        position += len(line)
    return sections
