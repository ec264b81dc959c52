"""Dequantizing against gguf, the oracle."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from engine.errors import UnsupportedError
from engine.kernels.team import ThreadTeam
from engine.quants import BLOCK_FORMATS, dequantize

# where the float16 scales of a block are
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
ODD_SCALES = np.array([0, -0.0, 6e-8, -6e-8, 6.1e-5, -6e-5, 1, -1, 65504, -65504, np.inf, np.nan], np.float16)


def random_blocks(tensor_type: GGMLQuantizationType, n_blocks: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(tensor_type.value)
    return random.integers(0, 256, (n_blocks, BLOCK_FORMATS[tensor_type].block_bytes), dtype=np.uint8)


def assert_same_as_gguf(blocks: NDArray[np.uint8], tensor_type: GGMLQuantizationType, *, n_threads: int = 1) -> None:
    with np.errstate(all="ignore"):  # of scales that are infinite or not a number
        if tensor_type is GGMLQuantizationType.F32:
            expected = blocks.view(np.float32)
        else:
            expected = gguf.dequantize(blocks, tensor_type).reshape(len(blocks), -1)
    team = ThreadTeam(n_threads)
    actual = dequantize(blocks.reshape(-1), tensor_type, expected.shape, team=team)
    team.close()
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual) | np.isnan(actual), np.signbit(expected) | np.isnan(expected))


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_every_type_gives_the_weights_that_gguf_gives(tensor_type: GGMLQuantizationType, n_threads: int) -> None:
    assert_same_as_gguf(random_blocks(tensor_type, 1000), tensor_type, n_threads=n_threads)


@pytest.mark.parametrize("name", SCALES)
def test_scales_that_are_zero_negative_or_subnormal_decode_exactly(name: str) -> None:
    tensor_type = GGMLQuantizationType[name]
    pairs = np.stack(np.meshgrid(ODD_SCALES, ODD_SCALES), axis=-1).reshape(-1, 2)
    blocks = random_blocks(tensor_type, len(pairs))
    for place, offset in enumerate(SCALES[name]):
        blocks[:, offset : offset + 2] = pairs[:, place : place + 1].copy().view(np.uint8)
    assert_same_as_gguf(blocks, tensor_type)


def test_every_exponent_of_mxfp4_decodes_exactly() -> None:
    blocks = random_blocks(GGMLQuantizationType.MXFP4, 256)
    blocks[:, 0] = np.arange(256)
    assert_same_as_gguf(blocks, GGMLQuantizationType.MXFP4)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "MXFP4"])
def test_what_gguf_quantizes_comes_back_close(name: str) -> None:
    tensor_type = GGMLQuantizationType[name]
    weights = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    data = gguf.quantize(weights, tensor_type)
    team = ThreadTeam(2)
    actual = dequantize(data.reshape(-1).view(np.uint8), tensor_type, weights.shape, team=team)
    team.close()
    assert np.abs(actual - weights).mean() < 0.12


def test_a_type_without_a_format_is_named() -> None:
    team = ThreadTeam(1)
    with pytest.raises(UnsupportedError, match="IQ1_S"):
        dequantize(np.zeros(50, np.uint8), GGMLQuantizationType.IQ1_S, (256,), team=team)
