"""The tokenizer gives the ids that llama.cpp gives, whatever the text."""

import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.errors import FormatError, UnsupportedError
from engine.formats.gguf import open_gguf
from engine.tokenizer.detokenizer import IncrementalDetokenizer
from engine.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.clock import best_of_three
from tests.hard_texts import HARD_TEXTS
from tests.peer import Peer
from tests.tiny_gguf import small_spm, tokenizer_metadata, write_llama

FILES = ("smollm2", "gemma3")


def load(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return load_tokenizer(file)


@pytest.fixture(scope="module")
def peers(smollm2: Path, gemma3: Path) -> Iterator[Mapping[str, tuple[Tokenizer, Peer]]]:
    with Peer(smollm2, n_ctx=256) as peer, Peer(gemma3, n_ctx=256) as other:
        yield {"smollm2": (load(smollm2), peer), "gemma3": (load(gemma3), other)}


def random_texts(tokenizer: Tokenizer, n: int, *, seed: int) -> Iterator[str]:
    """Yield texts of tokens, special tokens, white space and arbitrary characters."""
    rng = random.Random(seed)
    vocabulary = tokenizer.vocabulary
    special = [vocabulary.tokens[i] for i in np.flatnonzero(vocabulary.types != 1)][-300:]
    spaces = [" ", "  ", "\n", "\t", "\r\n", "▁", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "1", "'s"]
    ranges = [(0x20, 0x7F), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)]
    parts = [
        lambda: tokenizer.decode([rng.randrange(len(vocabulary.tokens))], special=True),
        lambda: rng.choice(special),
        lambda: rng.choice(spaces) * rng.randrange(1, 5),
        lambda: chr(rng.randrange(*rng.choice(ranges))),
    ]
    for _ in range(n):
        yield "".join(rng.choice(parts)() for _ in range(rng.randrange(1, 40)))


def assert_equal_ids(tokenizer: Tokenizer, peer: Peer, text: str) -> None:
    for parse_special in (True, False):
        ids = tokenizer.encode(text, parse_special=parse_special)
        assert ids.dtype == np.int32
        assert ids.tolist() == peer.tokenize(text, parse_special=parse_special), text
        assert tokenizer.decode(ids, special=True) == peer.detokenize(ids.tolist()), text


@pytest.mark.parametrize("name", FILES)
def test_hard_texts(peers: Mapping[str, tuple[Tokenizer, Peer]], name: str) -> None:
    for text in HARD_TEXTS:
        assert_equal_ids(*peers[name], text)


@pytest.mark.parametrize("name", FILES)
def test_random_texts(peers: Mapping[str, tuple[Tokenizer, Peer]], name: str) -> None:
    tokenizer, peer = peers[name]
    for text in random_texts(tokenizer, 300, seed=2):
        assert_equal_ids(tokenizer, peer, text)


def test_space_prefix(gemma3: Path, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", small_spm(gemma3) | {"tokenizer.ggml.add_space_prefix": True})
    tokenizer = load(path)
    with Peer(path, n_ctx=256) as peer:
        for text in [*HARD_TEXTS, *random_texts(tokenizer, 100, seed=4)]:
            assert_equal_ids(tokenizer, peer, text)
    assert tokenizer.decode(tokenizer.encode("the", parse_special=False)) == " the"
    assert tokenizer.decode(tokenizer.encode("the", parse_special=False, add_space_prefix=False)) == "the"


@pytest.mark.parametrize("name", FILES)
def test_text_never_becomes_a_control_token(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = load(request.getfixturevalue(name))
    control = [i for i in range(len(tokenizer.vocabulary.tokens)) if tokenizer.is_hidden(i)]
    assert tokenizer.decode(control) == ""
    for start in range(0, len(control), 100):
        ids = control[start : start + 100]
        text = "".join(tokenizer.vocabulary.tokens[i] for i in ids)
        assert tokenizer.encode(text, parse_special=True).tolist() == ids
        as_text = tokenizer.encode(text, parse_special=False)
        assert not set(as_text.tolist()) & set(control)
        assert tokenizer.decode(as_text) == text


@pytest.mark.parametrize(
    ("name", "endings"),
    [
        ("smollm2", {"<|endoftext|>", "<|im_end|>", "<reponame>"}),
        ("gemma3", {"<eos>", "<end_of_turn>", "</s>"}),
    ],
)
def test_end_of_generation(name: str, endings: set[str], request: pytest.FixtureRequest) -> None:
    vocabulary = load(request.getfixturevalue(name)).vocabulary
    assert {vocabulary.tokens[i] for i in vocabulary.special.end_of_generation} == endings


def test_lone_surrogates_become_replacement_characters(smollm2: Path) -> None:
    tokenizer = load(smollm2)
    assert tokenizer.decode(tokenizer.encode("a\ud800b\ude00", parse_special=True)) == "a\ufffdb\ufffd"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00", parse_special=True)) == "😀"


@pytest.mark.parametrize("name", FILES)
def test_incremental_detokenizer(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = load(request.getfixturevalue(name))
    detokenizer = IncrementalDetokenizer(tokenizer)
    for text in HARD_TEXTS:
        pieces = [detokenizer.push(i) for i in tokenizer.encode(text, parse_special=False)]
        assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(tokenizer.encode(text, parse_special=False))
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text(gemma3: Path) -> None:
    tokenizer = load(gemma3)
    byte = [tokenizer.vocabulary.ids[f"<0x{value:02X}>"] for value in range(256)]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push(byte[value]) for value in "€".encode()] == ["", "", "€"]
    assert [detokenizer.push(byte[value]) for value in (0xE2, 0x82, 0x41)] == ["", "", "\ufffdA"]
    assert detokenizer.push(byte[0xFF]) == "\ufffd"
    assert detokenizer.push(byte[0xF0]) == ""
    assert detokenizer.push(tokenizer.vocabulary.ids["<end_of_turn>"]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    told = IncrementalDetokenizer(tokenizer, special=True)
    assert told.push(tokenizer.vocabulary.ids["<end_of_turn>"]) == "<end_of_turn>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Yes.<|im_end|>\n<|im_start|>user", "Yes."),
        ("Yes.<|im_start|>user", "Yes."),
        ("<|im_end|>", ""),
        ("A <|im_<|im_end|>", "A <|im_"),
        ("<<|im_end|>", "<"),
        ("Yes <|im_ends", "Yes <|im_ends"),
        ("a < b and a <| b <|im_end", "a < b and a <| b <|im_end"),
        ("é<|im_end|>é", "é"),
    ],
)
def test_text_ends_before_a_stop_text(gemma3: Path, text: str, shown: str) -> None:
    tokenizer = load(gemma3)
    detokenizer = IncrementalDetokenizer(tokenizer, stop_texts=("<|im_end|>", "<|im_start|>"))
    ids = tokenizer.encode(text, parse_special=False)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == shown
    assert detokenizer.stopped == (text != shown)
    if detokenizer.stopped and detokenizer.n_kept is not None:
        assert tokenizer.decode(ids[: detokenizer.n_kept]) == shown


def test_tokens_before_a_stop_text_are_counted_where_it_begins_with_a_token(smollm2: Path) -> None:
    tokenizer = load(smollm2)
    kept = {}
    for parts in (["Yes", ".", "<", "END"], ["Yes", ".<", "END"], ["<", "END", "."]):
        detokenizer = IncrementalDetokenizer(tokenizer, stop_texts=["<END"])
        for part in parts:
            for token in tokenizer.encode(part, parse_special=False):
                detokenizer.push(token)
        kept[" ".join(parts)] = detokenizer.n_kept
    assert kept == {"Yes . < END": 2, "Yes .< END": None, "< END .": 0}


@pytest.mark.clock
def test_a_large_vocabulary_loads_at_once(gemma3: Path) -> None:
    assert best_of_three(partial(load, gemma3)) < 1


@pytest.mark.clock
@pytest.mark.parametrize("name", FILES)
def test_long_texts_take_no_time(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = load(request.getfixturevalue(name))
    for text in ("The dormouse sleeps for half of the year. " * 1200, "ab" * 25_000, "睡鼠" * 25_000):
        assert best_of_three(partial(tokenizer.encode, text, parse_special=False)) < 1


def test_digest(smollm2: Path, tmp_path: Path) -> None:
    metadata = tokenizer_metadata(smollm2)
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    changes: list[dict[str, object]] = [
        {},
        {"tokenizer.ggml.pre": "qwen2"},
        {"tokenizer.ggml.merges": merges[:-1]},
        {"tokenizer.ggml.add_bos_token": True},
    ]
    digests = [load(write_llama(tmp_path / "tiny.gguf", metadata | change)).digest for change in changes]
    assert digests[0] == load(smollm2).digest
    assert len(set(digests)) == len(changes)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, UnsupportedError, "the tokenizer 't5'"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "nobody"},
            UnsupportedError,
            "pre-tokenizer 'nobody'",
        ),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"},
            FormatError,
            "lacks the metadata .*merges",
        ),
        (
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.merges": ["no such"],
            },
            FormatError,
            "merges don't fit",
        ),
        ({"tokenizer.ggml.scores": [0.5]}, FormatError, "has 1 items for 4000 tokens"),
        ({"tokenizer.ggml.tokens": ["same"] * 4000}, FormatError, "has a token twice"),
        ({"tokenizer.ggml.token_type": [6] * 4000}, FormatError, "does not name a byte"),
        ({"tokenizer.ggml.bos_token_id": "one"}, FormatError, "has a text as its metadata .*bos_token_id"),
    ],
)
def test_refused_vocabularies(
    gemma3: Path, tmp_path: Path, change: dict[str, object], kind: type[Exception], words: str
) -> None:
    path = write_llama(tmp_path / "tiny.gguf", small_spm(gemma3) | change)
    with pytest.raises(kind, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
