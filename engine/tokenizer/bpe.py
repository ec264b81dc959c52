"""Byte-level BPE vocabularies, on the tokenizers library."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.vocabulary import Vocabulary


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
        try:
            model = models.BPE(
                vocab={**vocabulary.ids, **{letter: self._n_tokens + i for i, letter in enumerate(lacking)}},
                merges=[_pair(merge) for merge in vocabulary.merges],
                ignore_merges=pre.ignore_merges,
            )
        except Exception as error:  # the library knows no narrower type
            raise ValueError(f"its merges don't fit its vocabulary ({error})") from error
        self._tokenizer = Tokenizer(model)
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
