"""Text out of tokens that come one at a time."""

import codecs

from engine.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turn tokens into text as they come, never half a character.

    Bytes that may still become a character are held back; bytes that can't any more become U+FFFD. Control tokens
    give no text unless `special`.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that has become certain with this token."""
        if self._tokenizer.is_hidden(token) and not self._special:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """Return what was held back, at the end of a text, and be ready for another."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
