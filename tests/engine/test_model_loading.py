"""Models that can't be used as they are: refused in a sentence that names what is wrong."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.errors import DormouseError, FormatError, UnsupportedError
from engine.formats.gguf import open_gguf
from engine.kernels import load_kernels
from engine.models import LoadedModel, load_model
from tests.models.full_attention import mixtral
from tests.models.windowed import gemma2
from tests.tiny_gguf import N_EMBD, tokenizer_metadata, write_llama


def load(path: Path) -> LoadedModel:
    kernels = load_kernels(n_threads=1)
    try:
        with open_gguf(path) as file:
            return load_model(file, kernels)
    finally:
        kernels.close()


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer(smollm2: Path) -> dict[str, object]:
    return tokenizer_metadata(smollm2)


def test_a_tiny_model_is_loaded_and_known_again(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    one, other = (write_llama(tmp_path / name, tokenizer) for name in ("a.gguf", "b.gguf"))
    loaded = load(one)
    assert loaded.fingerprint == load(other).fingerprint
    assert loaded.model.config.n_layer == 1
    vector = np.ones(N_EMBD, np.float32), GGMLQuantizationType.F32
    changed = write_llama(tmp_path / "c.gguf", tokenizer, extra={"output_norm.weight": vector})
    assert load(changed).fingerprint != loaded.fingerprint


def test_a_tensor_type_that_is_not_supported_is_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    block, nbytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType.IQ2_XXS]
    data = np.zeros((4, nbytes), np.uint8)
    assert block == 256
    extra = {"blk.0.attn_q.weight": (data, GGMLQuantizationType.IQ2_XXS)}
    with pytest.raises(UnsupportedError, match=r"IQ2_XXS .*blk\.0\.attn_q\.weight"):
        load(write_llama(tmp_path / "m.gguf", tokenizer, extra=extra))


def test_tensors_that_nothing_uses_are_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    extra = {"blk.0.attn_q_norm.weight": (np.zeros(N_EMBD, np.float32), GGMLQuantizationType.F32)}
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q_norm\.weight"):
        load(write_llama(tmp_path / "m.gguf", tokenizer, extra=extra))


def test_a_missing_tensor_is_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=r"blk\.0\.ffn_up\.weight"):
        load(write_llama(tmp_path / "m.gguf", tokenizer, without=["blk.0.ffn_up.weight"]))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    extra = {"output_norm.weight": (np.zeros(7, np.float32), GGMLQuantizationType.F32)}
    with pytest.raises(FormatError, match=r"output_norm\.weight in the shape \(7,\)"):
        load(write_llama(tmp_path / "m.gguf", tokenizer, extra=extra))


def test_rope_scaling_that_is_not_supported_is_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    metadata = tokenizer | {"llama.rope.scaling.type": "spiral"}
    with pytest.raises(UnsupportedError, match="spiral"):
        load(write_llama(tmp_path / "m.gguf", metadata))


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"expert_used_count": 9}, "9 experts of 6"),
        ({"expert_gating_func": 7}, "gating function 7"),
        ({"attention.head_count_kv": 3}, "4 heads for 3"),
        ({"rope.dimension_count": 33}, "rotates 33 of 32"),
        ({"rope.freq_base": 0.0}, "to the base 0"),
    ],
)
def test_experts_and_heads_that_do_not_fit_are_named(tmp_path: Path, metadata: dict[str, object], says: str) -> None:
    model = mixtral()
    model.metadata.update(metadata)
    with pytest.raises(DormouseError, match=says):
        load(model.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("pattern", [[True], "all"])
def test_a_pattern_of_windows_that_is_none_is_named(tmp_path: Path, pattern: object) -> None:
    model = gemma2()
    model.metadata["attention.sliding_window_pattern"] = pattern
    with pytest.raises(FormatError, match="sliding window"):
        load(model.write(tmp_path / "m.gguf"))


def test_metadata_of_the_wrong_kind_are_named(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    metadata = tokenizer | {"llama.rope.freq_base": "fast"}
    with pytest.raises(FormatError, match=r"llama\.rope\.freq_base"):
        load(write_llama(tmp_path / "m.gguf", metadata))


def test_a_file_that_is_cut_while_it_is_loaded(tmp_path: Path) -> None:
    path = mixtral().write(tmp_path / "m.gguf")
    kernels = load_kernels(n_threads=1)
    with open_gguf(path) as file, pytest.raises(FormatError, match=r"m\.gguf was cut short while it was read"):
        load_model(file, kernels, progress=lambda done, total: os.truncate(path, 4096))
    kernels.close()
