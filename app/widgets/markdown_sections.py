"""Where a text can be cut so that its parts show as they do together, and what each part costs to show.

Whoever writes a text must not decide how long the window stands still for it. So a text is shown piece by piece, and a
piece is formatted only if that is cheap: its *work* is estimated line by line from what Qt spends its time on, letters,
lines, marks and the cells of tables, one unit being about a microsecond on a slow machine. What is over the bound is
shown as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

SECTION_WORK = 30_000
"""The most that is formatted in one go."""
SLICE_WORK = 7_000
"""What is shown in one go where there is a choice."""
LONGEST_LINE = 2_000
"""Letters of a line that is shown as one: laying out a line can't be interrupted."""

_SECTION, _LINE, _MARK, _CELL = 400, 40, 10, 150
_LONGEST_WORD = 1_000  # the time for a word that fills several lines grows with its square
_DEEPEST = 16  # lists and quotes within each other
_SURE = 12  # letters of a line after which more can't change what it begins

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CONTINUES = re.compile(r"\s|>|(?:[-*+]|\d{1,9}[.)])(?:\s|$)")  # a list, a quote, or an indented paragraph of one
_MARKS = re.compile(r"[*_~`\[\]!<>&\\|@:]|www")
_BREAKS = re.compile(r"[\r\u2028\u2029\ufdd0\ufdd1]")  # what Qt takes for the end of a line as well
_DELIMITERS = frozenset("-:| \t>\r\n")  # of the line below the head of a table
_CONTAINER = r"[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])"
_CONTAINERS = re.compile(rf"(?:{_CONTAINER})*")
_ONE_CONTAINER = re.compile(_CONTAINER)


@dataclass(frozen=True)
class Piece:
    """Part of a text, the way it is to be shown, and what that costs; plain text may go on in the middle of a line."""

    text: str
    kind: Literal["formatted", "plain", "code"]
    work: int
    begins: bool  # a section, and with it a line; otherwise it follows its predecessor directly


class Sections:
    """Cuts a growing text into pieces that more text can't change, and a rest that it may.

    A section of Markdown ends behind a blank line outside of code fences that is followed by the beginning of an
    ordinary paragraph, a heading or a fence: what may continue a list or a quote stays with it. A section that costs
    too much becomes plain, and is cut anywhere from there on. Text that is no Markdown is plain from the beginning.
    """

    def __init__(self, *, is_markdown: bool = True) -> None:
        self.text = ""
        self._is_markdown = is_markdown
        self._begin = 0  # of what was not handed out
        self._at = 0  # of what was not looked at: behind a line, or within one that is cut
        self._is_within_line = False
        self._fence = ""
        self._after_blank = False
        self._work = _SECTION  # of what was not handed out
        self._columns = 0  # of the table that the last line belongs to
        self._is_plain = not is_markdown
        self._is_at_begin = True
        self._is_code = False  # where what was not handed out begins

    @property
    def n_taken(self) -> int:
        """Letters that were handed out for good."""
        return self._begin

    def add(self, text: str) -> None:
        """Let the text grow."""
        self.text += text

    def take(self) -> Piece | None:
        """Hand out the next piece for good; None where more text is needed to tell."""
        while (n := self._line_length()) > 0:
            is_whole = self.text[self._at + n - 1] == "\n"
            if not is_whole and n < _SURE:
                return None
            if self._ends_section():
                piece = self._hand_out(self._at)
                self._begin_section()
                if piece is not None:
                    return piece
            elif self._is_plain:
                if (piece := self._take_plain(n, is_whole=is_whole)) is not None:
                    return piece
                if not is_whole:
                    return None
            else:
                work = self._line_work(n)
                if self._work + work > SECTION_WORK:
                    self._is_plain = True
                elif is_whole:
                    self._work += work
                    self._pass_line(n)
                else:
                    return None
        return None

    def rest(self) -> Piece | None:
        """Return what more text may change, as it is now."""
        text = self.text[self._begin :]
        work = self._work + self._line_work(len(self.text) - self._at)
        kind = self._kind() if work <= SECTION_WORK else "plain"
        return Piece(text, kind, work, self._is_at_begin) if text else None

    def _begin_section(self) -> None:
        self._work = _SECTION
        self._columns = 0
        self._is_plain = not self._is_markdown
        self._is_at_begin = True

    def _line_length(self) -> int:
        end = self.text.find("\n", self._at)
        return (end + 1 if end >= 0 else len(self.text)) - self._at

    def _ends_section(self) -> bool:
        """Tell whether the line that comes now can't belong to what is before it."""
        if not self._is_markdown or self._is_within_line or not self._after_blank or self._fence:
            return False
        head = self.text[self._at : self._at + _SURE]
        return self._at > self._begin and bool(head.strip()) and not _CONTINUES.match(head)

    def _take_plain(self, n: int, *, is_whole: bool) -> Piece | None:
        """Go over a line; hand out what has come together if that is a slice."""
        if n > SLICE_WORK:
            self._note_line(self.text[self._at : self._at + SLICE_WORK])
            self._at += SLICE_WORK
            self._is_within_line = True
            self._work += SLICE_WORK
            return self._hand_out(self._at)
        if is_whole:
            self._work += self._plain_work(n)
            self._pass_line(n)
            if self._work >= SLICE_WORK:
                return self._hand_out(self._at)
        return None

    def _hand_out(self, end: int) -> Piece | None:
        text, kind, work, begins = self.text[self._begin : end], self._kind(), self._work, self._is_at_begin
        self._begin, self._work, self._is_at_begin, self._is_code = end, 0, False, bool(self._fence)
        return Piece(text, kind, work, begins) if text else None

    def _kind(self) -> Literal["formatted", "plain", "code"]:
        if not self._is_plain:
            return "formatted"
        return "code" if self._is_code else "plain"

    def _pass_line(self, n: int) -> None:
        self._note_line(self.text[self._at : self._at + n])
        self._at += n
        self._is_within_line = False

    def _note_line(self, line: str) -> None:
        """Take note of what a line means for those behind it."""
        if self._is_within_line or not self._is_markdown:
            return
        marker = _FENCE.match(line)
        if marker and not self._fence:
            self._fence = marker[1]
        elif marker and marker[1].startswith(self._fence) and not line[marker.end() :].strip():
            self._fence = ""
        if self._at == self._begin:
            self._is_code = bool(self._fence)
        self._after_blank = not line.strip()
        if self._after_blank:
            self._columns = 0
        elif not self._columns:
            self._columns = _columns(line)

    def _line_work(self, n: int) -> int:
        """Return what it costs to show the next line, of `n` letters; beyond the bound it does not matter how much."""
        if self._is_plain or n > SECTION_WORK:
            return self._plain_work(n)
        line = self.text[self._at : self._at + n]
        if max(map(len, line.split()), default=0) > _LONGEST_WORD:
            return SECTION_WORK + 1
        work = self._plain_work(n) + _LINE * len(_BREAKS.findall(line))
        if self._fence:
            return work
        depth = len(_ONE_CONTAINER.findall(_CONTAINERS.match(line)[0]))  # type: ignore[index] # matches anything
        if depth > _DEEPEST:
            return SECTION_WORK + 1
        marks = len(_MARKS.findall(line))
        return work + _LINE * depth + _MARK * marks + _CELL * (self._columns or _columns(line))

    def _plain_work(self, n: int) -> int:
        if n > SECTION_WORK:
            return n + _LINE * (n // LONGEST_LINE)
        line = self.text[self._at : self._at + n]
        return len(line.encode("utf-8", "surrogatepass")) + _LINE * (1 + n // LONGEST_LINE)


def _columns(line: str) -> int:
    """Return how many columns the table has whose head is above this line; 0 if none can be."""
    is_delimiter = "-" in line and "|" in line and _DELIMITERS.issuperset(line)
    return line.strip("|> \t\r\n").count("|") + 1 if is_delimiter else 0


def lines_of(text: str, room: int = LONGEST_LINE) -> str:
    """Return plain text with its lines cut where they are too long to be laid out; the first has this much room."""
    lines: list[str] = []
    for line in _BREAKS.sub(" ", text.replace("\r\n", "\n")).split("\n"):
        lines.append(line[:room])
        lines += [line[start : start + LONGEST_LINE] for start in range(room, len(line), LONGEST_LINE)]
        room = LONGEST_LINE
    return "\n".join(lines)
