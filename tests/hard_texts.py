"""Texts that tokenizers stumble over."""

import random
import unicodedata

HARD_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "runs of    white \t\t  space\n\n\n   \n and \r\n\r\n line ends\r",
    "\n",
    "\t\t\tif x:\n\t\t\t\treturn  # comment\n\n\n\n",
    " " * 100,
    "\n" * 70,
    "def f(x: int) -> str:\n    return f'{x:>08.3f}' + \"\\n\" if x != 0 else r'\\d+'\n",
    'SELECT * FROM "t" WHERE a>=1 AND b<>\'x\'; -- 100%\n{"k": [1, 2.5e-3, null, true]}',
    "<html><body class='a'>&nbsp;<br/></body></html> <table><td>1</td></table>",
    "I'm you're he'll we've I'd it's DON'T I'M YOU'LL l'été 'tis ' s",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 ½ ² ٣٤٥ १२३ Ⅷ ①",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ 🫠",
    "深度学习是机器学习的一个分支。日本語のテキスト、カタカナ。한국어 텍스트입니다.",
    "هذا نص عربي مع أرقام ١٢٣ و تَشْكِيل",
    "עברית עם נִקּוּד, हिन्दी में पाठ, ภาษาไทย",
    "e\u0301 n\u0303 a\u0308\u0323 Z\u0351\u036b\u0343\u032a\u0302\u036b\u033d\u034f\u0334 \u0301alone",
    "\u00a0\u2003\u3000\u2028\u2029\u0085\u200b\u200d\ufeff\u180e\u1680",
    "\x00\x01\x1b[31m\x7f \x00",
    "\ufffd \uffff \ufffe \U0010ffff \ue000 \U000e0001 \U000771f1",
    "▁ already ▁▁ escaped ▁",
    "supercalifragilisticexpialidocious" * 20,
    "a" * 3000,
    "ab" * 1500,
    "x" + "\u0301" * 300,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<bos><eos><pad><unk></s><s><|endoftext|><|eot_id|> <0x0A> <unused42>[multimodal]",
    "<|im_end|><|im_end|> <|im_end|>x<|im_end|",
    "<<|im_end|>> <|im_<|im_end|>end|>",
    "[UNK_BYTE_0x20] Ġ Ċ ĉ Ġthe",
]

_SPACES = [" ", "  ", "\n", "\t", "\r\n", "▁", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "1", "'s"]
_RANGES = [(0x20, 0x7F), (0x20, 0x7F), (0x80, 0x3000), (0x3000, 0xD800), (0xF900, 0x20000)]


def random_text(seed: int) -> str:
    """Return a text of white space and characters of all scripts, those that have been in Unicode for long."""
    rng = random.Random(seed)

    def character() -> str:
        while True:
            letter = chr(rng.randrange(*rng.choice(_RANGES)))
            if unicodedata.ucd_3_2_0.category(letter) != "Cn":
                return letter

    parts = [
        lambda: rng.choice(_SPACES) * rng.randrange(1, 5),
        lambda: "".join(character() for _ in range(rng.randrange(1, 4))),
    ]
    return "".join(rng.choice(parts)() for _ in range(rng.randrange(1, 40)))
