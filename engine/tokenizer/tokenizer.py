"""Text to token ids and back, as llama.cpp does it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from gguf.constants import TokenType

from engine.errors import FormatError
from engine.formats.gguf import GGUFFile
from engine.tokenizer.bpe import bpe_encoder
from engine.tokenizer.rwkv import RWKVEncoder
from engine.tokenizer.spm import SPMEncoder
from engine.tokenizer.vocabulary import BPE, HIDDEN, PARSED, RWKV, SPM, Vocabulary, read_vocabulary


class Encoder(Protocol):
    """What each kind of vocabulary does in its own way."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens not parsed."""

    def spell(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""


_SWALLOWED = " \t\n\v\f\r"  # the white space of C's isspace
_ENCODERS: Mapping[str, Callable[[Vocabulary], Encoder]] = {SPM: SPMEncoder, BPE: bpe_encoder, RWKV: RWKVEncoder}


class Tokenizer:
    """Turn text into token ids and back.

    Attributes:
        vocabulary: the tokens.
        digest: of all that shapes the tokens of a prompt; see `Vocabulary.digest`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.digest = vocabulary.digest
        self._encoder: Encoder = _ENCODERS[vocabulary.model](vocabulary)
        self._types: list[int] = vocabulary.types.tolist()
        # A longer special token goes before a shorter one that it contains.
        parsed = [i for i, token_type in enumerate(self._types) if token_type in PARSED]
        parsed.sort(key=lambda i: -len(vocabulary.tokens[i].encode()))
        self._parsed = [(vocabulary.tokens[i], i) for i in parsed]
        self._always_parsed = [(text, i) for text, i in self._parsed if self._types[i] not in HIDDEN]

    def encode(self, text: str, *, parse_special: bool, add_space_prefix: bool | None = None) -> npt.NDArray[np.int32]:
        """Return the token ids of a text, int32 of shape (n,), without BOS or EOS.

        Args:
            text: any text; lone surrogates become U+FFFD.
            parse_special: control tokens spelled out in the text become these tokens.
            add_space_prefix: put a space before the text; by default if the vocabulary wants it before a new text.
                Text after a special token gets one if the vocabulary wants it, in any case.
        """
        prefix_wanted = self.vocabulary.add_space_prefix
        prefix = prefix_wanted if add_space_prefix is None else add_space_prefix
        ids: list[int] = []
        for fragment in self._fragments(_well_formed(text), parse_special=parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
                prefix = prefix_wanted
            else:
                ids += self._encoder.encode(f" {fragment}" if prefix else fragment)
                prefix = False
        return np.array(ids, np.int32)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of token ids, control tokens spelled out if `special`.

        Bytes that are not UTF-8 become U+FFFD; a space that the vocabulary put before the text stays.
        """
        shown = (i for i in ids if special or not self.is_hidden(i))
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes that one token stands for; a control token stands for its name."""
        text, token_type = self.vocabulary.tokens[token], self._types[token]
        if token_type in PARSED:
            return text.encode()
        if token_type == TokenType.BYTE:
            return bytes.fromhex(text[3:5])  # <0x0A>
        return self._encoder.spell(text) if token_type == TokenType.NORMAL else b""

    def is_hidden(self, token: int) -> bool:
        """Tell whether a token is for the model alone, not to be shown."""
        return self._types[token] in HIDDEN

    def ends_in_special(self, text: str) -> bool:
        """Tell whether a text ends in a token that is cut out of it before all else."""
        if text.endswith(tuple(special for special, _ in self._parsed)):
            return True
        swallowing = tuple(special for special, i in self._parsed if i in self.vocabulary.rstrip)
        return text.rstrip(_SWALLOWED).endswith(swallowing)

    def _fragments(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Cut special tokens out of a text: the longest first, each wherever it occurs."""
        fragments: list[str | int] = [text]
        for special, token in self._parsed if parse_special else self._always_parsed:
            if special in text:
                fragments = [
                    part
                    for fragment in fragments
                    for part in ([fragment] if isinstance(fragment, int) else self._cut(fragment, special, token))
                ]
        return [fragment for fragment in fragments if fragment != ""]

    def _cut(self, text: str, special: str, token: int) -> Iterable[str | int]:
        first, *others = text.split(special)
        yield first
        for other in others:
            yield token
            yield other.lstrip(_SWALLOWED) if token in self.vocabulary.rstrip else other


def load_tokenizer(gguf: GGUFFile) -> Tokenizer:
    """Make the tokenizer of a model.

    Raises:
        FormatError: its vocabulary is incomplete or damaged.
        UnsupportedError: it asks for a tokenizer or pre-tokenizer that is not known here.
    """
    vocabulary = read_vocabulary(gguf)
    try:
        return Tokenizer(vocabulary)
    except ValueError as error:
        raise FormatError(f"The file {gguf.path} is damaged: {error}.") from error


def _well_formed(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
