"""Architectures with recurrent layers against llama.cpp: what they say, and what they keep."""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.arrays import F32
from engine.errors import FormatError
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels
from engine.memory import AttentionRows, RecurrentState
from engine.models import Model, load_model
from tests.instruction_sets import COMPILED, FASTEST_AND_DOUBLES, make_kernels
from tests.models.agreement import difference, token_ids
from tests.models.recurrent import MODELS
from tests.peer import Peer


@pytest.fixture(scope="module", name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(getattr(request, "param", COMPILED[0]), n_threads=2, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def load(path: Path, kernels: Kernels) -> Model:
    with open_gguf(path) as gguf:
        return load_model(gguf, kernels).model


@pytest.mark.parametrize("kernels", FASTEST_AND_DOUBLES, indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_agree(name: str, kernels: Kernels, tmp_path: Path) -> None:
    found = difference(MODELS[name]().write(tmp_path / "tiny.gguf"), kernels)
    assert found.greatest < 1e-3
    assert found.top1 == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_threads_does_not_change_a_bit(
    name: str, kernels: Kernels, kernel_cache: Path, tmp_path: Path
) -> None:
    path = MODELS[name]().write(tmp_path / "tiny.gguf")
    alone = make_kernels(kernels.name, n_threads=1, cache_folder=kernel_cache)
    ids, results = token_ids(), []
    for some in (alone, kernels):
        model = load(path, some)
        memory = model.new_memory()
        results.append([model.forward(ubatch, memory) for ubatch in (ids[:100], ids[100:101], ids[101:])])
        results[-1].append(np.frombuffer(memory.checkpoint() or b"", np.float32))
    alone.close()
    for one, many in zip(*results, strict=True):
        assert np.array_equal(one, many)


@pytest.mark.parametrize("name", [name for name in MODELS if "window" not in name])
def test_states_are_those_of_llama_cpp(name: str, kernels: Kernels, tmp_path: Path) -> None:
    path = MODELS[name]().write(tmp_path / "tiny.gguf")
    model, ids = load(path, kernels), token_ids()
    memory = model.new_memory(np.float32)
    model.forward(ids, memory)
    with Peer(path, n_ctx=512, cache_type_k="f32", cache_type_v="f32", flash_attn="off") as peer:
        reader = SlotReader(peer.saved_slot(ids))
    needs = [need for needs in model.layer_memories for need in needs]
    if any(isinstance(need, AttentionRows) for need in needs):
        reader.skip_rows(ext=12 if "qwen35" in name else 0)
    expected = reader.states(sum(isinstance(need, RecurrentState) for need in needs))
    actual = np.frombuffer(memory.checkpoint() or b"", np.float32)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("mamba2", "ssm.time_step_rank", 7, "its mamba2.ssm.time_step_rank is 7, which doesn't divide the 128 values"),
        ("qwen35", "ssm.group_count", 3, "its qwen35.ssm.group_count is 3, which doesn't divide the 4 heads"),
        ("qwen35", "nextn_predict_layers", 5, "its qwen35.nextn_predict_layers is 5, of 5 layers"),
        ("rwkv7", "wkv.head_size", 48, "its rwkv7.wkv.head_size is 48, which doesn't divide the 64 values"),
    ],
)
def test_sizes_that_do_not_fit_are_named(
    name: str, key: str, value: int, words: str, kernels: Kernels, tmp_path: Path
) -> None:
    model = MODELS[name]()
    model.metadata[key] = value
    with pytest.raises(FormatError, match=words):
        load(model.write(tmp_path / "tiny.gguf"), kernels)


class SlotReader:
    """Reads a slot file of llama.cpp (state version 4) from its payload on."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 8
        (n_words,) = self._read("<I")
        self._position += 4 * n_words

    def skip_rows(self, *, ext: int) -> None:
        """Skip the K/V rows; `ext` bytes of each cell are for positions in pictures."""
        _, n_cell = self._read("<II")
        self._position += n_cell * (12 + ext)
        v_trans, n_layer, _, _ = self._read("<IIII")
        assert v_trans == 1
        for _ in range(n_layer):
            self._row(n_cell)
        for _ in range(n_layer):
            _, item_size, n_value = self._read("<iII")
            self._position += n_value * n_cell * item_size

    def states(self, n_layer: int) -> F32:
        """Return the states of recurrent layers: r by layer, then s by layer."""
        n_cell, _, n_seq_id, s_trans, _ = self._read("<IiIII")
        assert (n_cell, n_seq_id, s_trans) == (1, 0, 0)
        rows = [np.frombuffer(self._row(n_cell), np.float32) for _ in range(2 * n_layer)]
        assert self._data[self._position :][:4] in (b"", b"SCKP")
        return np.concatenate(rows)

    def _row(self, n_cell: int) -> bytes:
        _, row_size = self._read("<iQ")
        self._position += n_cell * row_size
        return self._data[self._position - n_cell * row_size : self._position]

    def _read(self, layout: str) -> tuple[int, ...]:
        self._position += struct.calcsize(layout)
        return struct.unpack_from(layout, self._data, self._position - struct.calcsize(layout))
