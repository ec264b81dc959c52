"""Which tokens are special, and which of them end a reply.

Many files leave that out. llama.cpp then knows such tokens by their text, so the same texts are known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.formats.gguf import GGUFFile

_TEXTS = {
    "eot": "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] "
    "<｜end▁of▁sentence｜> <end_of_utterance>",
    "eom": "<|eom_id|>",
    "fim_pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    "fim_suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    "fim_mid": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
_ENDING_TEXTS = (
    f"{_TEXTS['eot']} {_TEXTS['eom']} <|return|> <|call|> <|flush|> <|calls|> </s> [EOS] <eos> <turn|> "
    "<|tool_response> [e~["
)
# (texts, text): where a vocabulary has all these texts, that one ends a part of a reply, or nothing, but not the reply
_CONTINUING = (
    ("<|return|> <|call|>", "<|end|>"),  # gpt-oss
    ("<|call|> <|flush|>", "<|end|>"),
    ("<|calls|> <|flush|>", "<|end|>"),  # Solar Open
    ("<|tool_response>", "</s>"),  # Gemma 4
)
_ENDING_KINDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by id; None for what it lacks.

    Attributes:
        end_of_generation: all that end a reply.
        control: those that are control tokens by their text, whatever type the file gives them.
    """

    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    unk_id: int | None
    pad_id: int | None
    end_of_generation: frozenset[int]
    control: frozenset[int]


def find_special_tokens(gguf: GGUFFile, ids: Mapping[str, int], *, defaults: Mapping[str, int]) -> SpecialTokens:
    """Find the special tokens of a vocabulary: as the file says, else by default, else by their text.

    Args:
        gguf: the file.
        ids: the id of each token's text.
        defaults: the ids of `bos`, `eos` and `unknown` where the file doesn't give them.
    """
    declared = {
        kind: _declared_id(gguf, kind, n_tokens=len(ids), default=defaults.get(kind))
        for kind in ("bos", "eos", "unknown", "padding", *_TEXTS)
    }
    found: dict[str, int | None] = {
        kind: next((ids[text] for text in texts.split() if text in ids), None)
        for kind, texts in _TEXTS.items()
        if declared[kind] is None
    }
    by_kind = declared | found
    endings: set[int | None] = {ids[text] for text in _ENDING_TEXTS.split() if text in ids}
    continuing = {ids.get(text) for marks, text in _CONTINUING if all(mark in ids for mark in marks.split())}
    return SpecialTokens(
        bos_id=by_kind["bos"],
        eos_id=by_kind["eos"],
        eot_id=by_kind["eot"],
        unk_id=by_kind["unknown"],
        pad_id=by_kind["padding"],
        end_of_generation=_known((endings | {by_kind[kind] for kind in _ENDING_KINDS}) - continuing),
        control=_known((endings | set(found.values())) - continuing),
    )


def _declared_id(gguf: GGUFFile, kind: str, *, n_tokens: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{kind}_token_id"
    for candidate in (gguf.value(key, int) if key in gguf.metadata else None, default):
        if candidate is not None and 0 <= candidate < n_tokens:
            return candidate
    return None


def _known(ids: set[int | None]) -> frozenset[int]:
    return frozenset(i for i in ids if i is not None)
