"""Models that can't be used as they are: refused in a sentence that names what is wrong."""

import io
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine import runtime
from engine.errors import DormouseError, FormatError, UnsupportedError
from engine.formats.gguf import GGUFFile, open_gguf
from engine.kernels import load_kernels
from engine.models import LoadedModel, load_model, weights
from engine.models.config import Hyperparameters
from engine.models.ranges import RANGES
from engine.runtime import EngineSettings, Runtime
from engine.tokenizer.tokenizer import load_tokenizer
from tests.models import recurrent
from tests.models.full_attention import mixtral, qwen2
from tests.models.recurrent import lfm2, mamba2, nemotron_h, qwen35, rwkv7
from tests.models.tiny import TinyModel
from tests.models.windowed import gemma2, gemma4
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
        ({"expert_used_count": 9}, "llama.expert_used_count is 9, of 6 experts"),
        ({"expert_gating_func": 7}, "gating function 7"),
        ({"attention.head_count_kv": 3}, "llama.attention.head_count_kv is 3, which doesn't divide the 4 heads"),
        ({"rope.dimension_count": 34}, "llama.rope.dimension_count is 34, which are no pairs of the 32 values"),
        ({"rope.dimension_count": 31}, "llama.rope.dimension_count is 31, which are no pairs"),
        ({"attention.key_length": [32, 32]}, "a list of numbers as its metadata llama.attention.key_length"),
    ],
)
def test_experts_and_heads_that_do_not_fit_are_named(tmp_path: Path, metadata: dict[str, object], says: str) -> None:
    model = mixtral()
    model.metadata.update(metadata)
    with pytest.raises(DormouseError, match=says):
        load(model.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("made", "metadata", "says"),
    [
        (gemma4, {"rope.dimension_count_swa": None}, "gemma4.rope.dimension_count_swa is 32, .* of the 16 values"),
        (gemma4, {"attention.shared_kv_layers": 5}, "gemma4.attention.shared_kv_layers is 5, but no earlier layer"),
        (gemma4, {"attention.shared_kv_layers": 3}, "gemma4.attention.shared_kv_layers is 3, but no earlier layer"),
        (gemma4, {"attention.head_count_kv": [2, 2, 2, 4, 2]}, "shared_kv_layers is 2, but no earlier layer"),
        (lfm2, {"attention.head_count_kv": [0, 2]}, "lfm2.attention.head_count_kv has 2 numbers for 4 layers"),
        (lfm2, {"attention.head_count_kv": [0, 2, 0, -2]}, "head_count_kv is -2 in layer 3, not from 1 to 16,384"),
        (lfm2, {"attention.head_count_kv": ["2"] * 4}, "head_count_kv has no whole number for each layer"),
        (mamba2, {"ssm.time_step_rank": 7}, "mamba2.ssm.time_step_rank is 7, which doesn't divide the 128 values"),
        (mamba2, {"ssm.group_count": 3}, "mamba2.ssm.group_count is 3, which doesn't divide the 8 heads"),
        (rwkv7, {"wkv.head_size": 48}, "rwkv7.wkv.head_size is 48, which doesn't divide the 64 values"),
        (mamba2, {"ssm.group_count": 2**14, "ssm.state_size": 2**12}, "ssm.group_count is 16384, too many for states"),
        (qwen2, {"attention.head_count": 2**14}, "qwen2.attention.head_count is 16384, too many for heads of 16"),
        (qwen35, {"attention.value_length": 33}, "qwen35.attention.value_length is 33, but the gates have 16 values"),
        (qwen35, {"nextn_predict_layers": 100}, "qwen35.nextn_predict_layers is 100, of"),
        (
            qwen2,
            {"attention.head_count": 65, "attention.key_length": None},
            "head_count is 65, more than the 64 values",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(
    made: Callable[[], TinyModel], metadata: dict[str, object], says: str, tmp_path: Path
) -> None:
    model = made()
    model.metadata = {key: value for key, value in (model.metadata | metadata).items() if value is not None}
    with pytest.raises(FormatError, match=rf"m\.gguf can't be used: its .*{says}"):
        load(model.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", RANGES)
def test_numbers_that_no_model_has_are_refused_with_their_key(key: str) -> None:
    integer = isinstance(RANGES[key].low, int)
    integers = (-1, -(2**63), 2**31, 2**62, 2**64 - 1)
    floats = (math.nan, math.inf, -math.inf, -1.0, 1e38)
    for value in integers if integer else floats:
        metadata = {"general.architecture": "llama", f"llama.{key}": value}
        file = GGUFFile(path=Path("m.gguf"), version=3, metadata=metadata, tensors={}, file=io.FileIO(os.devnull))
        with file:
            hyperparameters = Hyperparameters(file)
            readers = (
                [hyperparameters.integer, hyperparameters.optional_integer]
                if integer
                else [hyperparameters.number, hyperparameters.optional_number]
            )
            for read in readers:
                with pytest.raises(FormatError, match=re.escape(f"its llama.{key} is {value}, not from ")) as caught:
                    read(key)
                assert str(caught.value).startswith("The file m.gguf can't be used: ")


def test_a_model_that_remembers_nothing_is_refused(tmp_path: Path) -> None:
    model = nemotron_h()
    ours = {
        name: tensor for name, tensor in model.tensors.items() if not name.startswith(("blk.0.", "blk.2.", "blk.3."))
    }
    model.tensors = {name.replace("blk.1.", "blk.0."): tensor for name, tensor in ours.items()}
    model.metadata |= {"block_count": 1, "feed_forward_length": [96], "attention.head_count_kv": [0]}
    with pytest.raises(UnsupportedError, match="has no layer that remembers tokens"):
        load(model.write(tmp_path / "m.gguf"))


def test_states_that_no_tensors_pay_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("D_STATE", "D_INNER"):
        monkeypatch.setattr(recurrent, size, 4096)
    model = mamba2(n_group=1)
    model.metadata["ssm.inner_size"] = 4096
    path = model.write(tmp_path / "m.gguf")
    with pytest.raises(FormatError, match=r"its mamba2\.ssm\.state_size .* makes states of .* bytes, with"):
        load(path)


def test_a_window_wider_than_any_text_takes_no_room(tmp_path: Path) -> None:
    model = gemma2()
    model.metadata["attention.sliding_window"] = 2**31 - 1
    loaded = load(model.write(tmp_path / "m.gguf")).model
    memory = loaded.new_memory()
    loaded.forward(np.arange(7, dtype=np.int32), memory)
    assert memory.nbytes < 64 << 20


@pytest.mark.skipif(os.name == "nt", reason="files that are open can't be deleted")
def test_a_file_that_is_deleted_while_it_is_loaded(tmp_path: Path) -> None:
    path = mixtral().write(tmp_path / "m.gguf")
    kernels = load_kernels("numpy", n_threads=1)
    loaded = Runtime.load(path, kernels, EngineSettings(), progress=lambda done, total: path.unlink(missing_ok=True))
    assert not path.exists()
    assert loaded.file_changed > 0
    kernels.close()


def test_progress_is_told_often_but_not_for_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MOST_CALLS", 10)
    told: list[tuple[int, int]] = []
    kernels = load_kernels("numpy", n_threads=1)
    with open_gguf(mixtral().write(tmp_path / "m.gguf")) as file:
        load_model(file, kernels, progress=lambda *numbers: told.append(numbers))
        total = sum(tensor.nbytes for tensor in file.tensors.values())
    kernels.close()
    assert 5 <= len(told) <= 11
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_a_name_is_one_line(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    name = {"general.name": "  A\nmodel " + 10_000 * "x"}
    loaded = load(write_llama(tmp_path / "m.gguf", tokenizer | name))
    assert loaded.model.config.name == "A model " + 192 * "x"


def test_merges_that_do_not_fit_are_told_in_a_sentence(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    merges = {"tokenizer.ggml.merges": ["a " + 10_000 * "\nx"]}
    path = write_llama(tmp_path / "m.gguf", tokenizer | merges)
    with open_gguf(path) as file, pytest.raises(FormatError, match="merges don't fit its vocabulary") as caught:
        load_tokenizer(file)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_what_is_too_large_for_the_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: object, **options: object) -> LoadedModel:
        raise MemoryError

    monkeypatch.setattr(runtime, "load_model", out_of_memory)
    kernels = load_kernels("numpy", n_threads=1)
    with pytest.raises(DormouseError, match=r"There is not enough memory for the model .*m\.gguf\."):
        Runtime.load(mixtral().write(tmp_path / "m.gguf"), kernels, EngineSettings())
    kernels.close()


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
