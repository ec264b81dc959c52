"""Colors for source code."""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

_KINDS = (
    (Comment, "comment"),
    (String, "string"),
    (Number, "number"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Decorator, "name"),
    (Name.Tag, "name"),
    (Name.Builtin, "name"),
)


def code_spans(code: str, language: str) -> list[tuple[int, int, str]]:
    """Return (start, length, kind) of the words of `code` to be colored; kinds as in `colors.code_colors`."""
    lexer = _lexer(language)
    if lexer is None:
        return []
    tokens = lexer.get_tokens_unprocessed(code)
    return [(start, len(word), kind) for start, token, word in tokens if (kind := _kind(token))]


@lru_cache
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language)
    except ClassNotFound:
        return None


def _kind(token: _TokenType) -> str | None:
    return next((kind for parent, kind in _KINDS if token in parent), None)


_lexer("python")  # compiling the commonest takes 35 ms, which would hold up a reply later
