"""BPE vocabularies, of bytes or of characters, on the tokenizers library."""

import re
from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from engine.errors import excerpt
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.vocabulary import SPACE, Vocabulary


class BPEEncoder:
    """Turn text into the token ids of a byte-level BPE vocabulary.

    Raises:
        ValueError: the merges don't fit the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pre = PRE_TOKENIZERS[vocabulary.pre]
        self._bytes = _bytes_of_letters()
        # Letters that the vocabulary lacks give no token, but they must keep their neighbors from merging.
        self._n_tokens = len(vocabulary.tokens)
        lacking = [letter for letter in self._bytes if letter not in vocabulary.ids]
        ids = {**vocabulary.ids, **{letter: self._n_tokens + i for i, letter in enumerate(lacking)}}
        self._tokenizer = Tokenizer(_model(ids, vocabulary.merges, ignore_merges=pre.ignore_merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens not parsed."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [i for i in ids if i < self._n_tokens]

    def spell(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for; what is no letter of the alphabet stands for itself."""
        return b"".join(self._bytes.get(letter) or letter.encode() for letter in token)


class RawBPEEncoder:
    """Turn text into the token ids of a BPE vocabulary of characters, with `▁` for a space, as Gemma 4's.

    Raises:
        ValueError: the merges don't fit the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pre = PRE_TOKENIZERS[vocabulary.pre]
        self._newlines = {
            token: i for token, i in vocabulary.ids.items() if pre.whole_newlines and not token.strip("\n")
        }
        self._tokenizer = Tokenizer(_model(vocabulary.ids, vocabulary.merges, byte_fallback=True))
        self._pieces = re.compile("|".join(pre.patterns))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens not parsed."""
        ids: list[int] = []
        for piece in self._pieces.findall(text.replace(" ", SPACE)):
            if piece in self._newlines:
                ids.append(self._newlines[piece])
            else:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def spell(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return token.replace(SPACE, " ").encode()


def bpe_encoder(vocabulary: Vocabulary) -> BPEEncoder | RawBPEEncoder:
    """Return the encoder for the alphabet that the pre-tokenizer goes with; raises ValueError as the encoders do."""
    return (BPEEncoder if PRE_TOKENIZERS[vocabulary.pre].byte_level else RawBPEEncoder)(vocabulary)


def _model(ids: Mapping[str, int], merges: Sequence[str], **options: bool) -> models.BPE:
    try:
        return models.BPE(vocab=dict(ids), merges=[_pair(merge) for merge in merges], **options)
    except Exception as error:  # the library knows no narrower type
        raise ValueError(f"its merges don't fit its vocabulary ({excerpt(str(error))})") from error


def _pair(merge: str) -> tuple[str, str]:
    first, _, second = merge.partition(" ")
    return first, second


def _bytes_of_letters() -> dict[str, bytes]:
    """Return the byte that each letter of the byte-level alphabet stands for.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, have the letters from U+0100 on.
    Source: GPT-2's encoder.py (Radford et al., 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 0x100 + i for i, byte in enumerate(others)}
    return {chr(code): bytes([byte]) for byte, code in codes.items()}
