"""Words of strangers in controls: titles, paths, what a file or a model says in an error.

Qt takes a text for HTML where it looks like it, and an `<img>` in it for a file to open; it takes `&` in a button or
menu for the key that presses it; and it lays out millions of letters if it is given them.
"""

from __future__ import annotations

import html
import re

_LONGEST = 600
_LONGEST_WORD = 80  # labels break lines between words and behind slashes alone
_LONGEST_CAPTION = 60
_LONG_WORD = re.compile(rf"[^\s/]{{{_LONGEST_WORD + 1},}}")


def legible(text: str, longest: int = _LONGEST) -> str:
    """Return a text with its middle left out where it, or one of its words, is too long to be read."""
    return _LONG_WORD.sub(lambda word: without_middle(word[0], _LONGEST_WORD), without_middle(text, longest))


def without_middle(text: str, longest: int) -> str:
    """Return a text of at most `longest` letters, with “…” in place of its middle if it had more."""
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[: longest - end - 1]}…{text[len(text) - end :]}"


def caption(text: str) -> str:
    """Return what a button or a menu is to be given to show `text`, in its letters."""
    return without_middle(text, _LONGEST_CAPTION).replace("&", "&&")


def tool_tip(text: str) -> str:
    """Return what a tooltip is to be given to show `text`, in its letters; nothing for nothing."""
    return f"<qt>{html.escape(legible(text)).replace(chr(10), '<br>')}</qt>" if text else ""
