"""K/V types against gguf's quantizers, and attention over what they keep."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.arrays import F32
from engine.errors import UnsupportedError
from engine.kernels import load_kernels
from engine.kernels.kv_types import KV_TYPES, RowSpan, dequantize_rows, is_finite, items_per_head, quantize_rows
from engine.memory import AttentionRows, compose
from tests.rows import HEAD_DIM, N_HEAD_KV, rows_of_every_sort

QUANTIZED = ["q8_0", "q4_0"]


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", QUANTIZED)
def test_rows_are_quantized_as_gguf_does_it(name: str) -> None:
    x = rows_of_every_sort()
    with np.errstate(over="ignore", invalid="ignore"):  # gguf divides by the smallest scales
        expected = gguf.quantize(x, GGMLQuantizationType[name.upper()])
    rows = quantize_rows(x, KV_TYPES[name])
    assert rows.shape == (500, N_HEAD_KV, HEAD_DIM // 32)
    ours = rows.view(np.uint8).reshape(expected.shape)
    scaled = np.abs(x).reshape(500, N_HEAD_KV, -1, 32).max(axis=-1) > 2e-7  # below, each scale is 0 and nothing counts
    ours, theirs = (a.reshape(*rows.shape, -1) for a in (ours, expected))
    np.testing.assert_array_equal(ours[scaled], theirs[scaled])
    assert not dequantize_rows(rows[:2]).any()
    assert not rows["d"][~scaled].any()


@pytest.mark.parametrize("name", QUANTIZED)
def test_rows_are_dequantized_as_gguf_does_it(name: str) -> None:
    rows = quantize_rows(rows_of_every_sort(), KV_TYPES[name])
    expected = gguf.dequantize(rows.view(np.uint8).reshape(len(rows), -1), GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(dequantize_rows(rows).reshape(expected.shape), expected)


@pytest.mark.parametrize("name", ["f16", "f32"])
def test_floats_are_kept_as_they_are(name: str) -> None:
    x = normal(3, N_HEAD_KV, HEAD_DIM)
    rows = quantize_rows(x, KV_TYPES[name])
    assert (rows.dtype, rows.shape) == (KV_TYPES[name], x.shape)
    np.testing.assert_array_equal(dequantize_rows(rows), x.astype(KV_TYPES[name]))


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("n_swa", [None, 7])
def test_attention_computes_with_the_dequantized_rows(name: str, n_swa: int | None) -> None:
    kernels = load_kernels(n_threads=2)
    q = normal(5, 2 * N_HEAD_KV, HEAD_DIM)
    k, v = (quantize_rows(normal(600, N_HEAD_KV, HEAD_DIM, seed=seed), KV_TYPES[name]) for seed in (1, 2))
    span = RowSpan(end=600, start=15)
    expected = kernels.attention(q, dequantize_rows(k), dequantize_rows(v), span, scale=0.1, n_swa=n_swa)
    ours = kernels.attention(q, k, v, span, scale=0.1, n_swa=n_swa)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    kernels.close()


@pytest.mark.parametrize("name", QUANTIZED)
def test_heads_that_are_not_whole_blocks_are_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"as {name}: its heads have 80 values.*choose f16"):
        compose([[AttentionRows(2, 80, 64)]], KV_TYPES[name])
    assert items_per_head(80, KV_TYPES["f16"]) == 80


def test_quantized_rows_take_the_room_that_their_blocks_do() -> None:
    sizes = {name: compose([[AttentionRows(2, 64, 64)]], dtype).parts[0].row_nbytes for name, dtype in KV_TYPES.items()}
    assert sizes == {"f16": 512, "f32": 1024, "q8_0": 272, "q4_0": 144}


@pytest.mark.parametrize("name", KV_TYPES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_every_kv_type_knows_numbers_that_are_none(name: str, value: float) -> None:
    dtype = KV_TYPES[name]
    x = np.random.default_rng(3).standard_normal((4, 2, 64)).astype(np.float32) * 1000
    rows = quantize_rows(x, dtype)
    assert is_finite(rows)
    assert is_finite(rows[:0])
    scales = rows if dtype.names is None else rows["d"]
    for place in (0, -1):
        spoiled = rows.copy()
        (spoiled if dtype.names is None else spoiled["d"]).reshape(-1)[place] = value
        assert not is_finite(spoiled)
    assert np.isfinite(scales.astype(np.float32)).all()
