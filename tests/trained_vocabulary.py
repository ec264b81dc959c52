"""BPE vocabularies made for a test: their merges join whatever stands beside each other in its texts."""

import json
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

CONTROL = ["<|endoftext|>", "<bos>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_NORMAL, _CONTROL, _BYTE = 1, 3, 6


def byte_level_vocabulary(texts: Sequence[str]) -> dict[str, object]:
    """Return the metadata of a vocabulary in the alphabet of bytes, which nearly makes one token of each text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _train(tokenizer, texts, special=CONTROL, alphabet=pre_tokenizers.ByteLevel.alphabet())


def character_vocabulary(texts: Sequence[str], *, more: Sequence[str] = ()) -> dict[str, object]:
    """Return the metadata of a vocabulary of the texts' commonest characters, of bytes for others, and of `more`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")
    without_zeros = [text.replace("\0", "") for text in texts]  # a zero ends a token's text in llama.cpp
    return _train(tokenizer, without_zeros, special=[*CONTROL, *_BYTES, *more], alphabet=[])


def _train(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: Sequence[str], alphabet: Sequence[str]
) -> dict[str, object]:
    trainer = trainers.BpeTrainer(
        vocab_size=6000,
        min_frequency=1,
        initial_alphabet=alphabet,
        limit_alphabet=300,
        show_progress=False,
        special_tokens=special,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.token_type": [
            _CONTROL if token in CONTROL else _BYTE if token in _BYTES else _NORMAL for token in tokens
        ],
        "tokenizer.ggml.bos_token_id": tokens.index("<bos>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|endoftext|>"),
    }
