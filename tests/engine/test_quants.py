"""Dequantizing against gguf, the oracle."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.errors import UnsupportedError
from engine.kernels.team import ThreadTeam
from engine.quants import BLOCK_FORMATS, dequantize


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_every_type_gives_the_weights_that_gguf_gives(tensor_type: GGMLQuantizationType, n_threads: int) -> None:
    block_format = BLOCK_FORMATS[tensor_type]
    random = np.random.default_rng(tensor_type.value)
    blocks = random.integers(0, 256, (1000, block_format.block_bytes), dtype=np.uint8)
    # random bytes make infinite scales as well: only the values of finite ones are defined
    with np.errstate(all="ignore"):
        if tensor_type is GGMLQuantizationType.F32:
            expected = blocks.view(np.float32)
        else:
            expected = gguf.dequantize(blocks, tensor_type).reshape(1000, block_format.block_size)
        team = ThreadTeam(n_threads)
        actual = dequantize(blocks.reshape(-1), tensor_type, expected.shape, team=team)
        team.close()
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
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
