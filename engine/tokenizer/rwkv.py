"""RWKV's World vocabularies: from where the text stands, the longest token that matches its bytes.

Source: the tokenizer of RWKV's World models (https://github.com/BlinkDL/RWKV-LM). GGUF files spell the bytes of a token
with the escapes `\\t`, `\\n`, `\\r`, `\\x0a`; any other letter behind a backslash stands for itself.
"""

import re

import numpy as np

from engine.tokenizer.vocabulary import PARSED, Vocabulary

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class RWKVEncoder:
    """Turn text into the token ids of an RWKV World vocabulary.

    Raises:
        ValueError: there is a byte for which no token stands.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        parsed = np.isin(vocabulary.types, PARSED)  # these never come out of text that just looks like them
        self._ids = {self.spell(token): i for i, token in enumerate(vocabulary.tokens) if not parsed[i]}
        lengths: dict[bytes, set[int]] = {}
        for spelled in self._ids:
            lengths.setdefault(spelled[:2], set()).add(len(spelled))
        # by the first two bytes of a token: the lengths of those that begin so, the longest first
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        for byte in range(256):
            if bytes([byte]) not in self._ids:
                raise ValueError(f"its vocabulary lacks the byte {byte}")

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens not parsed."""
        data = text.encode()
        ids = []
        position = 0
        while position < len(data):
            for length in (*self._lengths.get(data[position : position + 2], ()), 1):
                token = self._ids.get(data[position : position + length])
                if token is not None:
                    break
            assert token is not None  # every byte has one
            ids.append(token)
            position += length
        return ids

    def spell(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return _ESCAPE.sub(_unescape, token.encode())


def _unescape(escape: re.Match[bytes]) -> bytes:
    name: bytes = escape[1]
    return bytes.fromhex(name[1:].decode()) if len(name) == 3 else _CONTROLS.get(name, name)
