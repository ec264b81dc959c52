"""What single families of models want of their vocabularies, held against llama.cpp."""

from pathlib import Path

import numpy as np
import pytest

from engine.errors import FormatError
from engine.formats.gguf import open_gguf
from engine.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.hard_texts import HARD_TEXTS, random_text
from tests.peer import Peer
from tests.tiny_gguf import small_spm, tokenizer_metadata, write_llama

CONTROL = 3


def load(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return load_tokenizer(file)


def rwkv_vocabulary() -> dict[str, object]:
    """Return the metadata of a small World vocabulary: bytes, and words of which one begins another."""
    words = ["the", " the", "there", " there", "therefore", "睡", "睡鼠", "é", r"\n\n", r"\t\t", r"\r\n", r"\'\\"]
    parts_of_characters = [r"\xe7\x9d", r"\xff\xfe\xfd"]
    tokens = ["<s>", *(rf"\x{byte:02x}" for byte in range(256)), *words, *parts_of_characters]
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, *[1] * (len(tokens) - 1)],
        "tokenizer.ggml.eos_token_id": 0,
    }


def test_rwkv_takes_the_longest_token_that_matches(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", rwkv_vocabulary())
    tokenizer = load(path)
    with Peer(path, n_ctx=256) as peer:
        for text in [*HARD_TEXTS, "Therefore the there therefor\n\n\n睡鼠睡\t\t\t\\'", *map(random_text, range(50))]:
            ids = tokenizer.encode(text, parse_special=True).tolist()
            assert ids == peer.tokenize(text, parse_special=True), text
            assert tokenizer.decode(ids, special=True) == text
    assert tokenizer.decode(tokenizer.encode("<s>", parse_special=False)) == "<s>"
    assert not tokenizer.vocabulary.add_bos


def test_an_rwkv_vocabulary_without_a_byte_is_damaged(tmp_path: Path) -> None:
    metadata = rwkv_vocabulary()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index(r"\x42")] = "BB"
    with pytest.raises(FormatError, match="lacks the byte 66"):
        load(write_llama(tmp_path / "tiny.gguf", metadata))


def phi3_vocabulary(gemma3: Path) -> dict[str, object]:
    metadata = small_spm(gemma3) | {"general.name": "Phi-3 Mini", "tokenizer.ggml.add_space_prefix": True}
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, np.ndarray)
    types = types.copy()
    for i, text in enumerate(["<s>", "</s>", "<|endoftext|>", "<|user|>", "<|end|>", "<|assistant|>"]):
        tokens[tokens.index(text) if text in tokens else 10 + i] = text
        types[tokens.index(text)] = CONTROL
    return metadata | {"tokenizer.ggml.token_type": types}


def test_the_special_tokens_of_phi_3_swallow_the_white_space_behind_them(gemma3: Path, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", phi3_vocabulary(gemma3))
    tokenizer = load(path)
    texts = [
        "<|user|>\nHello<|end|>\n<|assistant|>\n",
        "<|user|> \t\n\v\f\r x<|user|>  <|end|>  ",
        "<s>  kept</s>  gone<|endoftext|>  kept<unk>  kept",
        "<|user|>\u00a0kept",
    ]
    with Peer(path, n_ctx=256) as peer:
        for text in texts:
            ids = tokenizer.encode(text, parse_special=True).tolist()
            assert ids == peer.tokenize(text, parse_special=True), text
    assert tokenizer.ends_in_special("<|user|>\n")
    assert not tokenizer.ends_in_special("<s>\f")
    assert tokenizer.digest != load(write_llama(tmp_path / "b.gguf", small_spm(gemma3))).digest


@pytest.mark.parametrize(
    ("texts", "endings", "others"),
    [
        (["<|return|>", "<|call|>", "<|end|>"], {"<|return|>", "<|call|>"}, {"<|end|>"}),
        (["<|call|>", "<|end|>"], {"<|call|>", "<|end|>"}, set()),
        (["<|flush|>", "<|calls|>", "<|end|>"], {"<|flush|>", "<|calls|>"}, {"<|end|>"}),
        (["<|tool_response>", "<turn|>", "</s>"], {"<|tool_response>", "<turn|>"}, {"</s>"}),
        (["<turn|>", "</s>"], {"<turn|>", "</s>"}, set()),
    ],
)
def test_what_ends_a_reply_depends_on_the_company_it_keeps(
    smollm2: Path, tmp_path: Path, texts: list[str], endings: set[str], others: set[str]
) -> None:
    metadata = tokenizer_metadata(smollm2)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[-len(texts) :] = texts
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    tokenizer = load(write_llama(tmp_path / "tiny.gguf", metadata | {"tokenizer.ggml.merges": merges[:1000]}))
    found = {tokenizer.vocabulary.tokens[i] for i in tokenizer.vocabulary.special.end_of_generation}
    assert endings <= found
    assert not others & found
