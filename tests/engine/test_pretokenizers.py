"""Every pre-tokenizer cuts text where llama.cpp does.

The vocabulary is made for this: its merges join whatever is beside each other in the texts, so that every boundary that
a pre-tokenizer sets shows in the ids.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from engine.formats.gguf import open_gguf
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.tokenizer import load_tokenizer
from tests.clock import best_of_three
from tests.hard_texts import HARD_TEXTS, random_text
from tests.peer import Peer
from tests.tiny_gguf import write_llama
from tests.trained_vocabulary import byte_level_vocabulary, character_vocabulary

# one name for each pre-tokenizer that several may share
FAMILIES = {pre: name for name, pre in reversed(PRE_TOKENIZERS.items())}
BYTE_LEVEL = [name for pre, name in FAMILIES.items() if pre.byte_level]
MORE_TEXTS = [
    "1 12 123 1234 12345 123456 1234567 12345678 123456789 1234567890123456 ٠١٢٣٤٥٦٧ a1234b 12,345.678",
    "HTTPServer parseJSON iPhone McDonald's ÉCOLE École éCOLE ǅungla ΑΒΓαβγ ПриветМир straße ŒUVRE œuvre DON'Tcry",
    "e\u0301te\u0301 क्षत्रिय กำลัง ไทย a\u0308B\u0308c \u0301x x\u0301's",
    "(a|b).c,d!e?f…g。h，i、j। k ( l | m . n",
    "汉字かなカナ한글漢字abc汉 字12汉A。！？「引用」『』〇々〆ㄅㄆㄇ（全角）ＡＢＣ１２３ﾊﾝｶｸ ㄱㄴㄷ 豈更 𠀀𠀁 ･ﾟ",
    "path/to/file //comment /* x */ #!/usr/bin a/\n/b //\r\n+=-=<=>=!=&&||^~`$%@",
    "$5 +3 <a> ^x ~y |z| `code` ¥100 €5 ×÷ ±½ ™© «q» “q” ‘q’ – — ․",
    " " * 3 + "a" + " " * 5 + "b" + "\t" * 3 + "c" + " " * 9 + "\n" + " " * 17 + "d" + " " * 33 + "e" + " " * 700 + "f",
    "line\n\n\nline \n \n line\r\rline\r\n \r\n\tx\n",
    "IMGIMGABZ IMGIMGHZIMG <sentinel:12><sentinel:x> IMGIMGABCDEZ",
    "ສະບາຍດີ ភាសាខ្មែរ မြန်မာ ꩠꩡ 한국어 ᄀᄁ",
]


@pytest.fixture(scope="module", name="texts")
def _texts() -> list[str]:
    return [*HARD_TEXTS, *MORE_TEXTS, *(random_text(seed) for seed in range(150))]


def assert_cut_alike(metadata: Mapping[str, object], texts: Sequence[str], path: Path) -> None:
    write_llama(path, metadata)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file)
    with Peer(path, n_ctx=256) as peer:
        for text in texts:
            ids = tokenizer.encode(text, parse_special=False).tolist()
            assert ids == peer.tokenize(text, parse_special=False), text
            assert tokenizer.decode(ids) == peer.detokenize(ids), text
        with_bos = [tokenizer.vocabulary.special.bos_id] if tokenizer.vocabulary.add_bos else []
        assert peer.tokenize("", parse_special=False, add_special=True) == with_bos


@pytest.fixture(scope="module", name="bytes_")
def _bytes(texts: list[str]) -> dict[str, object]:
    return byte_level_vocabulary(texts)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name: str, texts: list[str], bytes_: dict[str, object], tmp_path: Path) -> None:
    assert_cut_alike(bytes_ | {"tokenizer.ggml.pre": name}, texts, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    "name", [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level and name not in BYTE_LEVEL]
)
def test_other_names_of_the_same(name: str, bytes_: dict[str, object], tmp_path: Path) -> None:
    assert_cut_alike(bytes_ | {"tokenizer.ggml.pre": name}, MORE_TEXTS, tmp_path / "tiny.gguf")


@pytest.mark.parametrize("name", [name for name, pre in PRE_TOKENIZERS.items() if not pre.byte_level])
def test_characters(name: str, texts: list[str], tmp_path: Path) -> None:
    metadata = character_vocabulary(texts, more=["\n" * n for n in (9, 70)])  # newlines that nothing merges into
    assert_cut_alike(metadata | {"tokenizer.ggml.pre": name}, texts, tmp_path / "tiny.gguf")


def test_gemma_4_names_its_tokenizer_instead(texts: list[str], tmp_path: Path) -> None:
    metadata = character_vocabulary(texts) | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.add_bos_token": False}
    assert_cut_alike(metadata, texts, tmp_path / "tiny.gguf")


@pytest.mark.clock
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_long_texts_take_no_time(name: str, bytes_: dict[str, object], tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", bytes_ | {"tokenizer.ggml.pre": name})
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file)
    for text in ("The dormouse sleeps for half of the year. " * 500, "1234 " * 4000, " " * 20_000, "é'" * 10_000):
        assert best_of_three(partial(tokenizer.encode, text, parse_special=False)) < 1
