"""Text out of tokens that come one at a time."""

import codecs
from collections.abc import Sequence

from engine.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turn tokens into text as they come, never half a character.

    Bytes that may still become a character are held back; bytes that can't any more become U+FFFD. Control tokens
    give no text unless `special`. The text ends before the first of `stop_texts`, and what may still become one is
    held back as well.

    Attributes:
        stopped: a stop text came; no more text does.
        n_kept: then the number of tokens that the text before it is made of, None if it began within a token.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False, stop_texts: Sequence[str] = ()) -> None:
        self.stopped = False
        self.n_kept: int | None = None
        self._tokenizer = tokenizer
        self._special = special
        self._stop_texts = stop_texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may become a stop text
        self._length = 0  # characters of all text so far, with what is held
        self._ends = [0]  # that length after each token

    def push(self, token: int) -> str:
        """Return the text that has become certain with this token."""
        hidden = self._tokenizer.is_hidden(token) and not self._special
        text = "" if hidden else self._decoder.decode(self._tokenizer.token_bytes(token))
        self._length += len(text)
        self._ends.append(self._length)
        return self._release(text)

    def flush(self) -> str:
        """Return what was held back, at the end of a text."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        held = self._held + text
        if found := [place for stop in self._stop_texts if (place := held.find(stop)) >= 0]:
            return self._stop(held, min(found))
        n_held = max((_overlap(held, stop) for stop in self._stop_texts), default=0)
        certain = len(held) - n_held
        self._held = held[certain:]
        return held[:certain]

    def _stop(self, held: str, place: int) -> str:
        self.stopped = True
        length = self._length - len(held) + place
        self.n_kept = self._ends.index(length) if length in self._ends else None
        return held[:place]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
