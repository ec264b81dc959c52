"""Small GGUF models with random weights, written for a test."""

from collections.abc import Collection, Mapping
from pathlib import Path

import gguf
import numpy as np

from bench.model_file import add_metadata
from engine.formats.gguf import open_gguf

N_EMBD, N_HEAD, N_FF, N_CTX = 32, 2, 64, 256


def write_llama(
    path: Path,
    tokenizer: Mapping[str, object],
    *,
    without: Collection[str] = (),
    extra: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
) -> Path:
    """Write a `llama` model of one layer around the metadata of a tokenizer; return its path.

    Tensors `without` are left out; those of `extra` (bytes and type) are added or take the place of others.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    for key, value in tokenizer.items():
        add_metadata(writer, key, value)
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    shapes = {
        "token_embd.weight": (len(tokens), N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "blk.0.attn_norm.weight": (N_EMBD,),
        "blk.0.attn_q.weight": (N_EMBD, N_EMBD),
        "blk.0.attn_k.weight": (N_EMBD, N_EMBD),
        "blk.0.attn_v.weight": (N_EMBD, N_EMBD),
        "blk.0.attn_output.weight": (N_EMBD, N_EMBD),
        "blk.0.ffn_norm.weight": (N_EMBD,),
        "blk.0.ffn_gate.weight": (N_FF, N_EMBD),
        "blk.0.ffn_up.weight": (N_FF, N_EMBD),
        "blk.0.ffn_down.weight": (N_EMBD, N_FF),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        if name not in without and name not in (extra or {}):
            writer.add_tensor(name, random.standard_normal(shape, np.float32))
    for name, (data, tensor_type) in (extra or {}).items():
        writer.add_tensor(name, data, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_metadata(path: Path) -> dict[str, object]:
    """Return the metadata of a model's tokenizer."""
    with open_gguf(path) as file:
        return {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}


def small_spm(gemma3: Path) -> dict[str, object]:
    """Return the metadata of a tokenizer of Gemma's first tokens: control tokens, bytes and common pieces."""
    metadata = tokenizer_metadata(gemma3)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        items = metadata[key]
        assert isinstance(items, list | np.ndarray)
        metadata[key] = items[:4000]
    return metadata
