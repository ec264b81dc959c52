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

from engine.errors import FormatError, UnsupportedError, excerpt
from engine.formats.gguf import GGUFFile
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.special import SpecialTokens, find_special_tokens

SPM = "llama"  # the three kinds, as GGUF files name them
BPE = "gpt2"
RWKV = "rwkv"
_GEMMA4 = "gemma4"  # names a pre-tokenizer of the kind BPE as well
SPACE = "▁"  # how SPM spells a space
_PHI3_NOT_RSTRIP = {"<unk>", "<s>", "<|endoftext|>"}
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)  # not to be shown
PARSED = (*HIDDEN, TokenType.USER_DEFINED)  # cut out of a text before all else
_PIECE = 1 << 13  # tokens
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model and what they stand for.

    Attributes:
        model: the kind of vocabulary, `SPM`, `BPE` or `RWKV`.
        pre: the name of the pre-tokenizer; empty but for BPE.
        tokens: the text of each token in the vocabulary's own spelling (byte-level letters, `▁` for a space, escapes).
        ids: the id of each text.
        types: the `TokenType` of each token, int32 of shape (n_tokens,).
        scores: float32 of shape (n_tokens,); the highest merges first (SPM).
        merges: pairs of texts with a space between them; the first merges first (BPE).
        add_bos: a prompt begins with BOS.
        add_eos: a text ends with EOS.
        add_space_prefix: a text gets a space before it, at its beginning and after special tokens.
        rstrip: the special tokens that swallow the white space behind them.
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
    rstrip: frozenset[int]

    @cached_property
    def digest(self) -> str:
        """The xxh3-128 of all that shapes the tokens of a prompt, in hexadecimal."""
        settings = (self.model, self.pre, self.add_bos, self.add_eos, self.add_space_prefix, self.special.bos_id)
        digest = xxhash.xxh3_128(repr((*settings, *sorted(self.rstrip))).encode())
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
    if model not in {SPM, BPE, RWKV, _GEMMA4}:
        raise UnsupportedError(
            f"The file {gguf.path} asks for the tokenizer {excerpt(model)}, which this version doesn't know."
        )
    pre = _GEMMA4 if model == _GEMMA4 else _read_pre(gguf) if model == BPE else ""
    defaults = _default_special_tokens(model, pre)
    model = BPE if pre else model
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(gguf.value(Keys.Tokenizer.LIST, list))]
    if not tokens:
        raise FormatError(f"The file {gguf.path} is damaged: its vocabulary is empty.")
    ids: dict[str, int] = {}
    for start in range(0, len(tokens), _PIECE):  # between which other threads get a turn
        ids.update(zip(tokens[start : start + _PIECE], range(start, len(tokens)), strict=False))
    if len(ids) != len(tokens):
        raise FormatError(f"The file {gguf.path} is damaged: its vocabulary has a token twice.")
    special = find_special_tokens(gguf, ids, defaults=defaults)
    types = _read_numbers(gguf, Keys.Tokenizer.TOKEN_TYPE, np.full(len(tokens), TokenType.NORMAL, np.int32))
    types[list(special.control)] = TokenType.CONTROL
    for i in np.flatnonzero(types == TokenType.BYTE):
        if not _BYTE_TOKEN.fullmatch(tokens[i]):
            raise FormatError(f"The file {gguf.path} is damaged: its token {excerpt(tokens[i])} does not name a byte.")
    add_bos = gguf.value(Keys.Tokenizer.ADD_BOS, bool, PRE_TOKENIZERS[pre].add_bos if pre else model == SPM)
    if pre and PRE_TOKENIZERS[pre].always_bos:
        add_bos = True
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        ids=ids,
        types=types,
        scores=_read_numbers(gguf, Keys.Tokenizer.SCORES, np.zeros(len(tokens), np.float32)),
        merges=gguf.value(Keys.Tokenizer.MERGES, list) if model == BPE else [],
        special=special,
        add_bos=add_bos and special.bos_id is not None,
        add_eos=gguf.value(Keys.Tokenizer.ADD_EOS, bool, False) and special.eos_id is not None,
        add_space_prefix=model == SPM and gguf.value(Keys.Tokenizer.ADD_PREFIX, bool, True),
        rstrip=_find_rstrip(gguf, tokens, types),
    )


def _read_pre(gguf: GGUFFile) -> str:
    pre = gguf.value(Keys.Tokenizer.PRE, str)
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"The file {gguf.path} asks for the pre-tokenizer {excerpt(pre)}, which this version doesn't know."
        )
    return pre


def _default_special_tokens(model: str, pre: str) -> Mapping[str, int]:
    """Return the ids that llama.cpp takes where a file gives none."""
    if model == SPM:
        return {"bos": 1, "eos": 2, "unknown": 0}
    if model == BPE:
        return {"bos": 11, "eos": 11} if PRE_TOKENIZERS[pre].default_bos else {"eos": 11}
    return {}


def _find_rstrip(gguf: GGUFFile, tokens: Sequence[str], types: npt.NDArray[np.int32]) -> frozenset[int]:
    """Return the special tokens that swallow white space: no file tells, so llama.cpp knows Phi-3's by its name."""
    name = gguf.value(Keys.General.NAME, str, "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(i for i in np.flatnonzero(np.isin(types, PARSED)).tolist() if tokens[i] not in _PHI3_NOT_RSTRIP)


def _read_numbers(gguf: GGUFFile, key: str, default: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one number for each token, with the type of the default."""
    numbers = gguf.value(key, np.ndarray, default)
    if numbers.dtype.kind not in ("iu" if default.dtype.kind == "i" else "iuf") or np.isnan(numbers).any():
        raise FormatError(f"The file {gguf.path} is damaged: {key} has items that are no such numbers.")
    if len(numbers) != len(default):
        raise FormatError(f"The file {gguf.path} is damaged: {key} has {len(numbers)} items for {len(default)} tokens.")
    return numbers.astype(default.dtype)
