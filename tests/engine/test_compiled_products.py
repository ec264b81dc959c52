"""The products of every compiled set of kernels with every type of weights."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import DenseMatrix, Kernels
from engine.kernels.compiled.bricks import BrickReader
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.reference import ReferenceKernels
from engine.quants import BLOCK_FORMATS
from engine.quants.blocks import QuantizedFormat
from engine.quants.matrix import Tensor, load_matrix
from tests.instruction_sets import COMPILED, make_kernels
from tests.random_tensors import random_tensor, uniform_tensor, weights_of

F64 = NDArray[np.float64]
QUANTIZED = [t for t, block_format in BLOCK_FORMATS.items() if issubclass(block_format, QuantizedFormat)]
FLOATS = [t for t in BLOCK_FORMATS if t not in QUANTIZED]


@pytest.fixture(scope="module", params=COMPILED, name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def rounded(x: F32, tensor: Tensor, kernels: Kernels) -> F64:
    """Return activations as the products with a tensor take them: blocks of 32 small integers, with one scale."""
    if tensor.type in FLOATS:
        return x.astype(np.float64)
    assert isinstance(kernels, CompiledKernels)
    layout = BLOCK_FORMATS[tensor.type].layout  # type: ignore[attr-defined]
    limit = np.float32(32767 if BrickReader(layout, kernels.isa).wide else 127)
    blocks = x.reshape(len(x), x.shape[1] // 32, 32)
    top = np.abs(blocks).max(axis=-1, keepdims=True)
    integers = np.rint(blocks * np.divide(limit, top, out=np.zeros_like(top), where=top > 0))
    return (integers.astype(np.float64) * top / limit).reshape(x.shape)


def assert_product(kernels: Kernels, tensors: list[Tensor], x: F32) -> None:
    """Compare with float64; the error may be what float32 sums of such terms have."""
    out = kernels.matmul(x, load_matrix(tensors, kernels))
    columns = np.cumsum([0, *(tensor.shape[0] for tensor in tensors)])
    assert out.shape == (len(x), columns[-1])
    for tensor, first in zip(tensors, columns, strict=False):
        ours = out[:, first : first + tensor.shape[0]]
        weights = weights_of(tensor).astype(np.float64)
        exact = rounded(x, tensor, kernels)
        error = np.abs(ours - exact @ weights.T)
        assert (error <= 2e-6 * (np.abs(exact) @ np.abs(weights).T) + 1e-6 * np.abs(weights).max()).all()


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_products_of_odd_shapes(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    block_size = BLOCK_FORMATS[tensor_type].block_size
    for n_out, n_blocks in ((1, 1), (19, 1), (48, 3), (33, 2)):
        tensor = random_tensor(tensor_type, n_out, n_blocks * block_size)
        for n_tokens in (0, 1, 2, 5, 130):
            assert_product(kernels, [tensor], normal(n_tokens, tensor.shape[1]))


@pytest.mark.parametrize("tensor_type", FLOATS, ids=lambda t: t.name)
def test_float_products_of_any_number_of_inputs(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    for n_in in (1, 7, 33, 130):
        for n_tokens in (1, 2, 5, 130):
            assert_product(kernels, [random_tensor(tensor_type, 21, n_in)], normal(n_tokens, n_in))


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_products_are_close_to_the_references(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    tensor, x = random_tensor(tensor_type, 100, 512), normal(40, 512)
    reference = ReferenceKernels(n_threads=1)
    expected = reference.matmul(x, DenseMatrix(weights_of(tensor)))
    difference = kernels.matmul(x, load_matrix([tensor], kernels)) - expected
    assert np.linalg.norm(difference) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("tensor_type", QUANTIZED, ids=lambda t: t.name)
def test_precise_products(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    tensor = random_tensor(tensor_type, 33, 512)
    weights = weights_of(tensor).astype(np.float64)
    matrix = load_matrix([tensor], kernels, precise=True)
    for n_tokens in (1, 2, 5, 130):
        x = normal(n_tokens, 512)
        expected = x.astype(np.float64) @ weights.T
        assert np.linalg.norm(kernels.matmul(x, matrix) - expected) < 5e-5 * np.linalg.norm(expected)
        assert np.array_equal(kernels.matmul(x, matrix)[:1], kernels.matmul(x[:1], matrix))


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_a_token_gets_the_same_alone_and_among_others(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    tensor, x = random_tensor(tensor_type, 100, 512), normal(9, 512)
    matrix = load_matrix([tensor], kernels)
    together = kernels.matmul(x, matrix)
    for token in range(9):
        (alone,) = kernels.matmul(x[token : token + 1], matrix)
        np.testing.assert_allclose(alone, together[token], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_rows_are_taken_exactly(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    tensor = random_tensor(tensor_type, 37, 512)
    rows = np.array([0, 36, 5, 5, 16, 15, 31, 32], np.int32)
    matrix = load_matrix([tensor], kernels)
    assert np.array_equal(kernels.take_rows(matrix, rows), weights_of(tensor)[rows])
    assert kernels.take_rows(matrix, rows[:0]).shape == (0, 512)


def test_parts_of_different_types_and_sizes(kernels: Kernels) -> None:
    names = ["Q4_K", "Q4_K", "Q6_K", "F16", "Q8_0", "Q4_K"]
    sizes = [32, 19, 7, 5, 1, 64]
    tensors = [
        random_tensor(GGMLQuantizationType[name], n_out, 512, seed=seed)
        for seed, (name, n_out) in enumerate(zip(names, sizes, strict=True))
    ]
    for n_tokens in (0, 1, 5, 130):
        assert_product(kernels, tensors, normal(n_tokens, 512))


@pytest.mark.parametrize("tensor_type", QUANTIZED, ids=lambda t: t.name)
def test_nothing_saturates(kernels: Kernels, tensor_type: GGMLQuantizationType) -> None:
    alternating = np.where(np.arange(256) % 2, np.float32(-1), np.float32(1))
    x = np.stack([np.ones(256, np.float32), -np.ones(256, np.float32), alternating, -alternating] * 3)
    for byte in (0x00, 0x7F, 0x80, 0x88, 0xFF):  # the least and the most that values can be, whatever their bits
        for scale in (1, -1):
            tensor = uniform_tensor(tensor_type, 17, 256, byte=byte, scale=scale)
            for tokens in (x, x[:1], x[1:2], x[2:3], x[3:4]):
                assert_product(kernels, [tensor], tokens)


@pytest.mark.parametrize("tensor_type", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0], ids=lambda t: t.name)
@pytest.mark.parametrize("magnitude", [0.0, 1e-44, 1e-38, 1e-30, 1e30])
def test_activations_of_any_magnitude(kernels: Kernels, tensor_type: GGMLQuantizationType, magnitude: float) -> None:
    tensor, x = random_tensor(tensor_type, 20, 64), normal(3, 64) * np.float32(magnitude)
    wide_x, weights = x.astype(np.float64), weights_of(tensor).astype(np.float64)
    for n_tokens in (1, 3):
        difference = kernels.matmul(x[:n_tokens], load_matrix([tensor], kernels)) - wide_x[:n_tokens] @ weights.T
        tolerance = 0.01 * np.abs(wide_x[:n_tokens]) @ np.abs(weights).T
        assert (np.abs(difference) <= tolerance + 1e-33).all()  # below, what is left of a block may be nothing


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_what_is_not_finite_is_not_hidden_and_stays_in_its_token(
    kernels: Kernels, tensor_type: GGMLQuantizationType
) -> None:
    matrix, x = load_matrix([random_tensor(tensor_type, 20, 256)], kernels), normal(6, 256)
    expected = kernels.matmul(x, matrix)
    others = np.arange(6) != 2
    for value in (np.inf, -np.inf, np.nan):
        x[2, 70] = value
        out = kernels.matmul(x, matrix)
        assert not np.isfinite(out[2]).any()
        assert not np.isfinite(kernels.matmul(x[2:3], matrix)).any()
        assert np.array_equal(out[others], expected[others])


@pytest.mark.parametrize("name", COMPILED)
def test_the_number_of_threads_does_not_change_a_bit(name: str, kernel_cache: Path) -> None:
    results: list[list[bytes]] = []
    for n_threads in (1, 2, 3, 5):
        kernels = make_kernels(name, n_threads=n_threads, cache_folder=kernel_cache)
        outs = []
        for tensor_type in BLOCK_FORMATS:
            matrix = load_matrix([random_tensor(tensor_type, 90, 512)], kernels)
            outs += [kernels.matmul(normal(n, 512), matrix).tobytes() for n in (1, 5, 300)]
            outs.append(kernels.take_rows(matrix, np.arange(90, dtype=np.int32)).tobytes())
        results.append(outs)
        kernels.close()
    assert all(outs == results[0] for outs in results[1:])
