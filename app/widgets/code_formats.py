"""Colors for source code: of the words that most languages have in common.

What a model puts into a code fence is colored while the window waits, so each expression here goes over the code once:
none goes back over letters that it has passed. (The grammars of general highlighters do, and take seconds for a
thousand blank lines.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LONGEST = 10_000
"""Letters of source code that is colored."""
_WIDE = re.compile("[\U00010000-\U0010ffff]")  # letters that are two for Qt

_HASH, _SLASHES, _DASHES, _PERCENT = r"#[^\n]*", r"//[^\n]*", r"--[^\n]*", r"%[^\n]*"
_BLOCK, _TAG_COMMENT = r"/\*[\s\S]*?(?:\*/|\Z)", r"<!--[\s\S]*?(?:-->|\Z)"
_DOUBLE, _SINGLE, _BACK = (rf"{q}(?:[^{q}\\\n]|\\.)*{q}?" for q in "\"'`")
_LETTER = r"'(?:[^'\\\n]|\\[^\n][^'\n]{0,8})'"  # where a quote alone means something else
_TRIPLE = r'"""[\s\S]*?(?:"""|\Z)|' + r"'''[\s\S]*?(?:'''|\Z)"
_LINES = r"`[^`]*`?"

_C = """auto bool break case catch char class const constexpr continue default delete do double else enum extern false
 float for goto if include inline int long namespace new nullptr override private protected public return short signed
 sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile
 while define ifdef ifndef endif NULL"""
_JAVA = """abstract as async await boolean break byte case catch char class const continue data default do double else
 enum extends false final finally float for foreach fun get if implements import in instanceof int interface internal
 is let long match module mixin namespace new null object of override package private protected public readonly return
 sealed set short static string struct super switch this throw throws trait true try type typeof undefined using val
 var virtual void when where while with yield"""
_SCRIPT = """async await break case catch class const continue debugger default delete do else enum export extends false
 finally for from function if implements import in instanceof interface let new null of private protected public
 readonly return static super switch this throw true try type typeof undefined var void while with yield"""
_PYTHON = """and as assert async await break case class continue def del elif else except False finally for from global
 if import in is lambda match None nonlocal not or pass raise return True try while with yield"""
_SHELL = """case do done elif else esac export fi for function if in local return select set then unset until while
 source sudo cd echo exit read"""
_RUST = """as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod
 move mut pub ref return self Self static struct super trait true type unsafe use where while"""
_GO = """break case chan const continue default defer else fallthrough false for func go goto if import interface map
 nil package range return select struct switch true type var"""
_RUBY = """alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo
 require rescue retry return self super then true undef unless until when while yield function local repeat my sub use
 foreach"""
_SQL = """add all alter and as asc between by case create cross default delete desc distinct drop else end exists false
 foreign from full group having if in index inner insert into is join key left like limit not null offset on or order
 outer primary references right select set table then true union unique update values view when where with"""
_LUA = """and break do else elseif end false for function goto if in local nil not or repeat return then true until
 while case class data deriving import instance let module newtype of type where"""
_TEX = "begin end documentclass usepackage section subsection if else for while function return"
_BEFORE_NAMES = frozenset(("class", "def", "fn", "fun", "func", "function", "interface", "module", "struct", "trait"))


@dataclass(frozen=True)
class _Grammar:
    expression: re.Pattern[str]
    keywords: frozenset[str]
    ignores_case: bool = False


def _grammar(
    comments: str, strings: str, keywords: str, names: str = r"@\w+", *, ignores_case: bool = False
) -> _Grammar:
    expression = (
        rf"(?P<comment>{comments})|(?P<string>{strings})|(?P<number>\b\d[\w.]*)|(?P<name>{names})|(?P<word>\w+)"
    )
    return _Grammar(re.compile(expression), frozenset(keywords.split()), ignores_case)


_FAMILIES = {
    "c c++ cpp h hpp cc objc cuda": (f"{_SLASHES}|{_BLOCK}", f"{_DOUBLE}|{_LETTER}", _C, r"#[ \t]*\w+"),
    "java kotlin kt scala dart csharp cs c# swift groovy php": (f"{_SLASHES}|{_BLOCK}", f"{_DOUBLE}|{_SINGLE}", _JAVA),
    "javascript js jsx typescript ts tsx json json5": (
        f"{_SLASHES}|{_BLOCK}",
        f"{_DOUBLE}|{_SINGLE}|{_LINES}",
        _SCRIPT,
    ),
    "css scss less": (rf"{_BLOCK}|{_SLASHES}", f"{_DOUBLE}|{_SINGLE}", "important", r"[.#@][\w-]+"),
    "python py python3 py3 pycon": (_HASH, f"[fFrRbBuU]{{0,2}}(?:{_TRIPLE}|{_DOUBLE}|{_SINGLE})", _PYTHON),
    "bash sh shell zsh console fish powershell ps1 dockerfile docker makefile make": (
        _HASH,
        f"{_DOUBLE}|{_SINGLE}",
        _SHELL,
        r"\$\{?\w+",
    ),
    "yaml yml toml ini cfg conf properties": (
        rf"{_HASH}|(?m:^);[^\n]*",
        f"{_DOUBLE}|{_SINGLE}",
        "true false null yes no",
    ),
    "rust rs": (f"{_SLASHES}|{_BLOCK}", f"{_DOUBLE}|{_LETTER}", _RUST, r"\w+!|#\["),
    "go golang": (f"{_SLASHES}|{_BLOCK}", f"{_DOUBLE}|{_LETTER}|{_LINES}", _GO),
    "ruby rb perl pl r julia jl elixir nim": (_HASH, f"{_DOUBLE}|{_SINGLE}", _RUBY, r"[$@]\w+"),
    "sql sqlite mysql postgresql postgres": (f"{_DASHES}|{_BLOCK}", f"{_DOUBLE}|{_SINGLE}", _SQL),
    "lua haskell hs ada": (_DASHES, f"{_DOUBLE}|{_LETTER}", _LUA),
    "tex latex matlab octave erlang": (_PERCENT, _DOUBLE, _TEX, r"\\\w+"),
    "html xml svg xhtml vue": (_TAG_COMMENT, f"{_DOUBLE}|{_SINGLE}", "", r"</?[\w:-]+"),
}
_BY_NAME = {name: family for names, family in _FAMILIES.items() for name in names.split()}


def code_spans(code: str, language: str) -> list[tuple[int, int, str]]:
    """Return (start, length, kind) of the words of `code` to be colored; kinds as in `colors.code_colors`.

    Letters are counted as Qt does, in UTF-16. Code that is too long has no colors, nor has an unknown language.
    """
    family = _BY_NAME.get(language.lower())
    if family is None or len(code) > LONGEST:
        return []
    grammar = _made(family, ignores_case=family[2] is _SQL)
    spans = []
    before = ""
    for found in grammar.expression.finditer(_WIDE.sub("xx", code)):
        kind = found.lastgroup
        if kind == "word":
            word = found[0].lower() if grammar.ignores_case else found[0]
            kind = "keyword" if word in grammar.keywords else "name" if before in _BEFORE_NAMES else None
            before = word
        else:
            before = ""
        if kind is not None:
            spans.append((found.start(), len(found[0]), kind))
    return spans


@lru_cache
def _made(family: tuple[str, ...], *, ignores_case: bool) -> _Grammar:
    return _grammar(*family, ignores_case=ignores_case)
