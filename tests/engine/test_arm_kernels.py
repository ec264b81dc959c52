"""The kernels for Arm, run by an emulator, against the reference kernels."""

from collections.abc import Iterator

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.arrays import F32
from engine.kernels import DenseMatrix, Kernels, RopeTable
from engine.kernels.compiled import kernels as compiled
from engine.kernels.compiled.isa import NEON
from engine.kernels.kv_types import KV_TYPES, RowSpan, quantize_rows
from engine.kernels.reference import ReferenceKernels
from engine.quants import BLOCK_FORMATS
from engine.quants.matrix import load_matrix
from tests.emulated_arm import EmulatedLibrary
from tests.random_tensors import random_tensor, weights_of
from tests.rows import HEAD_DIM, N_HEAD_KV, rows_of_every_sort


@pytest.fixture(scope="module", name="kernels")
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    EmulatedLibrary.folder = tmp_path_factory.mktemp("arm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "Library", EmulatedLibrary)
        kernels = compiled.CompiledKernels(NEON(), n_threads=1)
    yield kernels
    kernels.close()


@pytest.fixture(scope="module", name="reference")
def _reference() -> ReferenceKernels:
    return ReferenceKernels(n_threads=1)


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("tensor_type", BLOCK_FORMATS, ids=lambda t: t.name)
def test_products(kernels: Kernels, reference: Kernels, tensor_type: GGMLQuantizationType) -> None:
    tensor, x = random_tensor(tensor_type, 37, 256), normal(6, 256)
    weights = weights_of(tensor)
    matrix = load_matrix([tensor], kernels)
    for tokens in (x, x[:1]):
        expected = reference.matmul(tokens, DenseMatrix(weights))
        difference = kernels.matmul(tokens, matrix) - expected
        assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(expected)
    rows = np.array([36, 0, 16], np.int32)
    assert np.array_equal(kernels.take_rows(matrix, rows), weights[rows])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [1, 20])
def test_attention(kernels: Kernels, reference: Kernels, kv_type: str, n_tokens: int) -> None:
    q, dtype = normal(n_tokens, 6, 32), KV_TYPES[kv_type]
    k, v = (quantize_rows(normal(90, 2, 32, seed=seed), dtype) for seed in (1, 2))
    span, how = RowSpan(first=8, end=80), {"scale": 0.3, "n_swa": 60, "softcap": 5.0, "sinks": normal(6)}
    np.testing.assert_allclose(
        kernels.attention(q, k, v, span, **how), reference.attention(q, k, v, span, **how), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_rows_are_stored(kernels: Kernels, reference: Kernels, kv_type: str) -> None:
    x, span = rows_of_every_sort()[:100], RowSpan(first=1, end=110)
    ours = quantize_rows(np.ones((120, N_HEAD_KV, HEAD_DIM), np.float32), KV_TYPES[kv_type])
    theirs = ours.copy()
    kernels.store_rows(x, ours, span)
    reference.store_rows(x, theirs, span)
    assert ours.tobytes() == theirs.tobytes()


def test_norms_rotations_and_activations(kernels: Kernels, reference: Kernels) -> None:
    x, up, weight = normal(5, 2, 37), normal(5, 37), normal(37, seed=1)
    operations = [
        lambda kernels: kernels.rms_norm(x, weight, 1e-6),
        lambda kernels: kernels.silu_mul(x[:, 0], up),
        lambda kernels: kernels.gelu_mul(x[:, 0], up),
        lambda kernels: kernels.sigmoid_mul(x[:, 0], up),
    ]
    for interleaved in (True, False):
        table = RopeTable(normal(5, 16), normal(5, 16, seed=1), interleaved)
        operations.append(lambda kernels, table=table: kernels.rope(x, table))
    for operation in operations:
        np.testing.assert_allclose(operation(kernels), operation(reference), rtol=1e-5, atol=1e-6)
