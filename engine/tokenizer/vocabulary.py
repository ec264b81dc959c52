"""The vocabulary of a model, as its GGUF file describes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from gguf.constants import Keys, TokenType

from engine.errors import FormatError, UnsupportedError
from engine.formats.gguf import GGUFFile
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.special import SpecialTokens, find_special_tokens

SPM = "llama"  # the two kinds, as GGUF files name them
BPE = "gpt2"
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model and what they stand for.

    Attributes:
        model: the kind of vocabulary, `SPM` or `BPE`.
        pre: the name of the pre-tokenizer; empty for SPM.
        tokens: the text of each token in the vocabulary's own spelling (byte-level letters, `▁` for a space).
        ids: the id of each text.
        types: the `TokenType` of each token, int32 of shape (n_tokens,).
        scores: float32 of shape (n_tokens,); the highest merges first (SPM).
        merges: pairs of texts with a space between them; the first merges first (BPE).
        add_bos: a prompt begins with BOS.
        add_eos: a text ends with EOS.
        add_space_prefix: a text gets a space before it, at its beginning and after special tokens.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    ids: Mapping[str, int]
    types: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    merges: Sequence[str]
    special: SpecialTokens
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    @cached_property
    def digest(self) -> str:
        """The xxh3-128 of all that shapes the tokens of a prompt, in hexadecimal."""
        settings = (self.model, self.pre, self.add_bos, self.add_eos, self.add_space_prefix, self.special.bos_id)
        digest = xxhash.xxh3_128(repr(settings).encode())
        for texts in (self.tokens, self.merges):
            digest.update(f"{len(texts)}\n".encode() + "\n".join(texts).encode())
        digest.update(self.types.tobytes())
        digest.update(self.scores.tobytes())
        return digest.hexdigest()


def read_vocabulary(gguf: GGUFFile) -> Vocabulary:
    """Read the vocabulary of a model.

    Raises:
        FormatError: it is incomplete, or contradicts itself.
        UnsupportedError: it is of a kind, or asks for a pre-tokenizer, that is not known here.
    """
    model = gguf.value(Keys.Tokenizer.MODEL, str)
    if model not in {SPM, BPE}:
        raise UnsupportedError(
            f"The file {gguf.path} asks for the tokenizer {model!r}, which this version doesn't know."
        )
    pre = _read_pre(gguf) if model == BPE else ""
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(gguf.value(Keys.Tokenizer.LIST, list))]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        raise FormatError(f"The file {gguf.path} is damaged: its vocabulary has a token twice.")
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if model == SPM else {"bos": 11, "eos": 11}
    special = find_special_tokens(gguf, ids, defaults=defaults)
    types = _read_numbers(gguf, Keys.Tokenizer.TOKEN_TYPE, np.full(len(tokens), TokenType.NORMAL, np.int32))
    types[list(special.control)] = TokenType.CONTROL
    for i in np.flatnonzero(types == TokenType.BYTE):
        if not _BYTE_TOKEN.fullmatch(tokens[i]):
            raise FormatError(f"The file {gguf.path} is damaged: its token {tokens[i]!r} does not name a byte.")
    adds_bos = model == SPM or PRE_TOKENIZERS[pre].add_bos
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        ids=ids,
        types=types,
        scores=_read_numbers(gguf, Keys.Tokenizer.SCORES, np.zeros(len(tokens), np.float32)),
        merges=gguf.value(Keys.Tokenizer.MERGES, list) if model == BPE else [],
        special=special,
        add_bos=gguf.value(Keys.Tokenizer.ADD_BOS, bool, adds_bos) and special.bos_id is not None,
        add_eos=gguf.value(Keys.Tokenizer.ADD_EOS, bool, False) and special.eos_id is not None,
        add_space_prefix=model == SPM and gguf.value(Keys.Tokenizer.ADD_PREFIX, bool, True),
    )


def _read_pre(gguf: GGUFFile) -> str:
    pre = gguf.value(Keys.Tokenizer.PRE, str)
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"The file {gguf.path} asks for the pre-tokenizer {pre!r}, which this version doesn't know."
        )
    return pre


def _read_numbers(gguf: GGUFFile, key: str, default: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one number for each token, with the type of the default."""
    numbers = gguf.value(key, np.ndarray, default)
    if len(numbers) != len(default):
        raise FormatError(f"The file {gguf.path} is damaged: {key} has {len(numbers)} items for {len(default)} tokens.")
    return numbers.astype(default.dtype)
