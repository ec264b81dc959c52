"""How text is cut into words before byte-level BPE: a table, by the name that a GGUF file gives.

Source: the `tokenizer.json` of the models in question, and the names that llama.cpp gives them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreTokenizer:
    """How one family of BPE vocabularies cuts text into words.

    Attributes:
        patterns: regular expressions (Oniguruma), applied one after the other; every match, and what lies between
            two matches, is a piece of its own.
        ignore_merges: a whole word that is a token is taken as it is, whatever the merges say.
        add_bos: a prompt begins with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


def _newer_words(number: str) -> str:
    return (
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + number
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = PreTokenizer((_GPT2_WORDS,))
_LLAMA3 = PreTokenizer((_newer_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_newer_words(r"\p{N}"),))
_SMOLLM = PreTokenizer((r"\p{N}", _GPT2_WORDS))

_FAMILIES: Mapping[str, PreTokenizer] = {
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling": _GPT2,
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": _LLAMA3,
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan": _QWEN2,
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _SMOLLM,
}

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: pre for names, pre in _FAMILIES.items() for name in names.split()}
)
