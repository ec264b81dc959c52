"""How text is cut into words before BPE: a table, by the name that a GGUF file gives.

Sources: the `tokenizer.json` of the models in question, and llama.cpp's `llama-vocab.cpp`, whose names these are. Where
the two disagree (llama.cpp takes a letter beyond ASCII for one of either case), the patterns here do as llama.cpp does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class PreTokenizer:
    """How one family of BPE vocabularies cuts text into words.

    Attributes:
        patterns: regular expressions (Oniguruma), applied one after the other to the pieces that the one before made;
            every match, and what lies between two matches, is a piece of its own.
        ignore_merges: a whole word that is a token is taken as it is, whatever the merges say.
        add_bos: a prompt begins with BOS unless the file says otherwise.
        always_bos: it does even if the file says otherwise (some files of Gemma 4 are wrong).
        default_bos: without a BOS in the file there is llama.cpp's default one.
        byte_level: tokens are spelled in GPT-2's alphabet of bytes; otherwise as they are, with `▁` for a space, and
            bytes that are in no token as `<0x0A>`.
        whole_newlines: a run of newlines that is a token is taken as it is, whatever the merges say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    always_bos: bool = False
    default_bos: bool = True
    byte_level: bool = True
    whole_newlines: bool = False


_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_OPTIONAL_CONTRACTION = f"(?:{_CONTRACTION})?"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# between groups of three digits, counted from the right, and behind the last; not before the first, as in llama.cpp
_TRIPLES_FROM_THE_RIGHT = r"(?<=\p{N})(?=(?:\p{N}{3})*(?!\p{N}))"
_LINES = r"[^\n]+|\n+"
_CJK = r"[[一-龥ࠀ-一가-퟿]&&\S]+"  # to llama.cpp, white space is in none of its ranges
_CHINESE_JAPANESE = "[一-龥぀-ゟ゠-ヿ]+"
_UNTIL_PUNCTUATION = r" ?[^(\s|.,!?…。，、।۔،)]+"

# DeepSeek's: a sign may begin a word of ASCII letters, marks belong to letters
_SIGN_AND_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_MARKED_LETTERS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_MARKED_WORDS = rf"{_SIGN_AND_ASCII}|{_MARKED_LETTERS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"

# letters with a case, as of DeepSeek LLM's tokenizer.json
_CASED = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    r"\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ"
    r"-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

# the ranges that llama.cpp takes for Chinese characters in Kimi's vocabularies
_HAN = r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"


def _words(number: str, *, letters: str = _LETTERS, signs: str = _SIGNS) -> str:
    """Return the pattern of Llama 3, with another group of digits or more of it changed."""
    return f"{_CONTRACTION}|{letters}|{number}|{signs}|{_SPACES}"


def _words_by_case(letter: str, number: str, *, contraction: str) -> str:
    """Return the pattern of GPT-4o: a word is some capitals, then some small letters, then a contraction."""
    capital, small = rf"[{letter}&&[^a-z]]", rf"[{letter}&&[^A-Z]]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{capital}*{small}+{contraction}|{first}{capital}+{small}*{contraction}"
    return rf"{words}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


def _words_of_any_case(number: str) -> str:
    """Return the same where llama.cpp can't tell capitals from small letters at all."""
    letters = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_OPTIONAL_CONTRACTION}"
    return rf"{letters}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),))
_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_GLM = PreTokenizer(_LLAMA3.patterns, default_bos=False)
_RAW_LINES = PreTokenizer((_LINES,), byte_level=False)

_FAMILIES: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9]{3}")),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling jina-es jina-de jina-v2-es "
    "jina-v2-de jina-v1-en jina-v2-code roberta-bpe modern-bert": PreTokenizer((_GPT2_WORDS,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2_WORDS)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2_WORDS, "[0-9]{3}")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": replace(
        _LLAMA3, ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe": _LLAMA3,
    "chatglm-bpe": _GLM,
    "glm4 glm5": replace(_GLM, ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s",
        )
    ),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _QWEN2,
    "qwen35": PreTokenizer(
        (
            _words(
                r"\p{N}",
                letters=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            ),
        )
    ),
    "laguna": PreTokenizer((_LINES, *_QWEN2.patterns)),
    "ufakzeka": PreTokenizer((rf"{_LETTERS}|\p{{N}}|{_SIGNS}|{_SPACES}",)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",)
    ),
    "seed-coder": PreTokenizer((_words(r"\p{N}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "deepseek-llm": PreTokenizer(
        ("[\r\n]", rf"\s?[{_CASED}]+", r"\s?[[!-/:-~！-／：-～‘-‟　-。]&&\S]+", r"\s+\z", _CJK, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer((r"\p{N}{1,3}", _CHINESE_JAPANESE, _MARKED_WORDS)),
    "spark2_5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _CHINESE_JAPANESE,
            rf"{_SIGN_AND_ASCII}|{_MARKED_LETTERS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "afmoe": PreTokenizer(
        (
            _TRIPLES_FROM_THE_RIGHT,
            "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
            _MARKED_WORDS,
        )
    ),
    "youtu": PreTokenizer(
        (f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CHINESE_JAPANESE}", _words_of_any_case(r"\p{N}")),
        ignore_merges=True,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer(
        (_words_by_case(r"\p{L}", r"\p{N}{1,3}", contraction=_OPTIONAL_CONTRACTION),)
    ),
    "granite-embed-multi-97m": PreTokenizer(
        (_words_by_case(r"[\p{L}\p{M}]", r"\p{N}{1,3}", contraction=_OPTIONAL_CONTRACTION),), ignore_merges=True
    ),
    "tekken": PreTokenizer((_words_by_case(r"\p{L}", r"\p{N}", contraction=""),), ignore_merges=True, add_bos=True),
    "tiny_aya cohere2moe": PreTokenizer((_TRIPLES_FROM_THE_RIGHT, _words_of_any_case(r"\p{N}{1,3}"))),
    "kimi-k2": PreTokenizer(
        (
            rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_OPTIONAL_CONTRACTION}|\p{{N}}{{1,3}}|"
            rf"{_SIGNS}|{_SPACES}",
        )
    ),
    "superbpe": PreTokenizer((r"\p{N}+", "(?=(?:[0-9]{3})+(?![0-9]))")),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_UNTIL_PUNCTUATION,)),
    "viking": PreTokenizer((_UNTIL_PUNCTUATION, r"\p{N}")),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            "[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2_WORDS,
        ),
        add_bos=True,
    ),
    "gemma4 granite-embed-multi-311m": replace(_RAW_LINES, always_bos=True, whole_newlines=True),
    "sarvam-moe": _RAW_LINES,
}

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: pre for names, pre in _FAMILIES.items() for name in names.split()}
)
