"""Every array that an operation takes: of another dtype, of another shape, and with gaps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels, RopeTable, load_kernels
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.kv_types import KV_TYPES, RowSpan, quantize_rows
from engine.quants.matrix import load_matrix
from tests.random_tensors import random_tensor

Arguments = dict[str, Any]
N_TOKENS, N, N_ROWS = 3, 64, 20
KV = [f"{operation} {kv_type}" for operation in ("attention", "store_rows") for kv_type in KV_TYPES]
FREE = {  # axes whose size no other argument tells
    ("matmul", "x", 0),
    ("short_conv", "x", 0),
    ("attention", "q", 0),
    ("take_rows", "rows", 0),
    ("store_rows", "x", 0),
    ("store_rows", "rows", 0),
    ("rms_norm", "x", 0),
    ("layer_norm", "x", 0),
    ("rope", "x", 1),
    ("rope", "x", 2),
    ("attention", "v", 2),
}
ANY_AXES = {("rms_norm", "x"), ("layer_norm", "x")}  # before those that are named


@pytest.fixture(scope="module", params=["numpy", None], ids=["numpy", "compiled"], name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = load_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def normal(*shape: int) -> F32:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def matmul() -> Arguments:
    return {"x": normal(N_TOKENS, N), "weight": random_tensor(GGMLQuantizationType.F32, 40, N)}


def take_rows() -> Arguments:
    return {"weight": random_tensor(GGMLQuantizationType.F32, 40, N), "rows": np.arange(N_TOKENS, dtype=np.int32)}


def add() -> Arguments:
    return {"x": normal(N_TOKENS, N), "y": normal(N_TOKENS, N)}


def norm() -> Arguments:
    return {"x": normal(N_TOKENS, 2, N), "weight": normal(2, N), "eps": 1e-5}


def rope() -> Arguments:
    return {"x": normal(N_TOKENS, 4, 16), "table": RopeTable(normal(N_TOKENS, 8), normal(N_TOKENS, 8), False)}


def gate() -> Arguments:
    return {"gate": normal(N_TOKENS, N), "up": normal(N_TOKENS, N)}


def attention(kv_type: str) -> Arguments:
    k, v = (quantize_rows(normal(N_ROWS, 2, 64), KV_TYPES[kv_type]) for _ in "kv")
    numbers = {"span": RowSpan(end=8), "scale": 0.1, "n_swa": None}
    return {"q": normal(N_TOKENS, 4, 64), "k": k, "v": v, "sinks": normal(4), **numbers}


def store_rows(kv_type: str) -> Arguments:
    rows = quantize_rows(normal(N_ROWS, 2, 64), KV_TYPES[kv_type])
    return {"x": normal(N_TOKENS, 2, 64), "rows": rows, "span": RowSpan(end=8)}


def short_conv() -> Arguments:
    return {"x": normal(N_TOKENS, N), "r": normal(N, 3), "weight": normal(N, 4), "bias": normal(N)}


def delta_net() -> Arguments:
    q, v, alpha = normal(N_TOKENS, 2, 32), normal(N_TOKENS, 4, 64), normal(N_TOKENS, 4)
    by_head = {"a": -np.exp(normal(4)), "dt_bias": normal(4)}
    return {"q": q, "k": q, "v": v, "alpha": alpha, "beta": alpha, "s": normal(4, 64, 32), "eps": 1e-6, **by_head}


def ssd() -> Arguments:
    by_head = {"a": -np.exp(normal(4)), "d": normal(4), "dt_bias": normal(4)}
    b = normal(N_TOKENS, 2, 32)
    return {"x": normal(N_TOKENS, 4, 64), "b": b, "c": b, "dt": normal(N_TOKENS, 4), "s": normal(4, 64, 32), **by_head}


def scan() -> Arguments:
    by_channel = {"a": -np.exp(normal(N, 16)), "d": normal(N), "dt_bias": normal(N)}
    x, b = normal(N_TOKENS, N), normal(N_TOKENS, 16)
    return {"x": x, "b": b, "c": b, "dt": x, "s": normal(N, 16), **by_channel}


def wkv() -> Arguments:
    x = normal(N_TOKENS, 2, 32)
    return {"r": x, "k": x, "v": x, "log_w": -np.exp(-np.abs(x)), "a": x, "b": x, "s": normal(2, 32, 32)}


def given(operation: str) -> tuple[str, Arguments]:
    """Return the operation that a case is of, and arguments that fit."""
    name, *kv_type = operation.split()
    if kv_type:
        return name, {"attention": attention, "store_rows": store_rows}[name](*kv_type)
    others: dict[str, Callable[[], Arguments]] = {
        "matmul": matmul, "take_rows": take_rows, "add": add, "rope": rope,
        "multiply": add, "rms_norm": norm, "layer_norm": norm,
        "silu_mul": gate, "gelu_mul": gate, "sigmoid_mul": gate, "clamped_swiglu": gate,
        "short_conv": short_conv, "gated_delta_net": delta_net, "ssd_scan": ssd, "selective_scan": scan, "wkv7": wkv,
    }  # fmt: skip
    return name, others[name]()


OPERATIONS = sorted(
    {name for name in Kernels.__abstractmethods__ if name not in ("identity", "attention", "store_rows")}
)


def array_cases() -> Iterator[tuple[str, str]]:
    for operation in OPERATIONS + KV:
        for name, value in given(operation)[1].items():
            if isinstance(value, np.ndarray):
                yield operation, name
    yield "rope", "table.cos"
    yield "rope", "table.sin"


CASES = list(array_cases())


def call(kernels: Kernels, operation: str, arguments: Arguments) -> list[NDArray[Any]]:
    """Return all that an operation computes."""
    arguments = dict(arguments)
    if "weight" in arguments and operation in ("matmul", "take_rows"):
        arguments["weight"] = load_matrix([arguments["weight"]], kernels)
    result = getattr(kernels, operation)(**arguments)
    if operation == "store_rows":
        return [arguments["rows"]]
    return list(result) if isinstance(result, tuple) else [result]


def value_of(arguments: Arguments, parameter: str) -> NDArray[Any]:
    name, _, part = parameter.partition(".")
    value: NDArray[Any] = getattr(arguments[name], part) if part else arguments[name]
    return value


def replaced(arguments: Arguments, parameter: str, value: NDArray[Any]) -> Arguments:
    name, _, part = parameter.partition(".")
    if not part:
        return arguments | {name: value}
    table = arguments[name]
    arrays = {"cos": table.cos, "sin": table.sin} | {part: value}
    return arguments | {name: RopeTable(**arrays, interleaved=table.interleaved)}


@pytest.mark.parametrize(("case", "parameter"), CASES)
def test_another_dtype_is_refused(case: str, parameter: str, kernels: Kernels) -> None:
    operation, arguments = given(case)
    call(kernels, operation, arguments)
    value = value_of(arguments, parameter)
    for dtype in (np.float64, np.int64, np.uint8):
        other = np.zeros(value.shape, dtype)
        with pytest.raises(TypeError, match=f"{operation}: {parameter} is an array of {np.dtype(dtype)}"):
            call(kernels, operation, replaced(arguments, parameter, other))
    with pytest.raises(TypeError, match=f"{operation}: {parameter} is no array"):
        call(kernels, operation, replaced(arguments, parameter, value.tolist()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("case", "parameter"), CASES)
def test_another_shape_is_refused(case: str, parameter: str, kernels: Kernels) -> None:
    operation, arguments = given(case)
    value = value_of(arguments, parameter)
    if (operation, parameter) not in ANY_AXES:
        with pytest.raises(ValueError, match=f"{operation}: {parameter}"):
            call(kernels, operation, replaced(arguments, parameter, value[None, None]))
    for axis, size in enumerate(value.shape):
        if (operation, parameter, axis) not in FREE:
            shape = *value.shape[:axis], size + 1, *value.shape[axis + 1 :]
            with pytest.raises(ValueError, match=f"{operation}: "):
                call(kernels, operation, replaced(arguments, parameter, np.resize(value, shape)))


@pytest.mark.parametrize(("case", "parameter"), CASES)
def test_values_with_gaps_are_refused_or_read_as_they_lie(case: str, parameter: str, kernels: Kernels) -> None:
    operation, arguments = given(case)
    expected = [result.copy() for result in call(kernels, operation, arguments)]
    operation, arguments = given(case)
    value = value_of(arguments, parameter)
    for axis in range(value.ndim):
        wide = np.zeros((*value.shape[:axis], 2 * value.shape[axis], *value.shape[axis + 1 :]), value.dtype)
        every_other = wide[(slice(None),) * axis + (slice(None, None, 2),)]
        every_other[...] = value
        try:
            actual = call(kernels, operation, replaced(arguments, parameter, every_other))
        except ValueError as error:
            assert f": {parameter.removeprefix('table.')} " in str(error)  # noqa: PT017 - either is right
            continue
        for ours, theirs in zip(actual, expected, strict=True):
            if ours.dtype.names is None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
            else:
                assert (ours == theirs).all()


@pytest.mark.parametrize("number", [40, -1, 2**31 - 1, -(2**31)])
def test_rows_that_a_matrix_does_not_have_are_refused(number: int, kernels: Kernels) -> None:
    arguments = take_rows()
    arguments["rows"][1] = number
    with pytest.raises(ValueError, match="take_rows: rows has numbers that are not from 0 to 39"):
        call(kernels, "take_rows", arguments)


@pytest.mark.parametrize("case", KV)
@pytest.mark.parametrize(
    ("first", "end"), [(0, N_ROWS + 1), (-1, 8), (9, 8), (6, 8), (0, N_TOKENS - 1), (0, 2**62), (-(2**62), 8), (0, -5)]
)
def test_spans_of_rows_that_are_not_there_are_refused(case: str, first: int, end: int, kernels: Kernels) -> None:
    operation, arguments = given(case)
    arguments["span"] = RowSpan(first, end)
    with pytest.raises(ValueError, match=f"{operation}: the span from {first} to {end} has no 3 of 20 rows"):
        call(kernels, operation, arguments)


def test_a_span_moves_within_its_rows() -> None:
    span = RowSpan(1, 3, 7)
    for first, end in ((0, N_ROWS + 1), (-1, 8), (9, 8)):
        with pytest.raises(ValueError, match="are not among 20"):
            span.move(first, end, 0, n_rows=N_ROWS)
        assert (span.first, span.end, span.start) == (1, 3, 7)
    span.move(0, N_ROWS, 5, n_rows=N_ROWS)
    assert (span.first, span.end, span.start) == (0, N_ROWS, 5)


def test_heads_that_cannot_share_are_refused(kernels: Kernels) -> None:
    for operation, arguments, parameters in (
        ("attention", attention("f16"), {"k": 3, "v": 3}),
        ("gated_delta_net", delta_net(), {"q": 3, "k": 3}),
        ("ssd_scan", ssd(), {"b": 3, "c": 3}),
    ):
        for parameter, n_head in parameters.items():
            value = arguments[parameter]
            arguments[parameter] = np.resize(value, (len(value), n_head, value.shape[2]))
        with pytest.raises(ValueError, match=f"{operation}: no n_.* divides n_head"):
            call(kernels, operation, arguments)


def test_rotations_of_more_than_a_head_are_refused(kernels: Kernels) -> None:
    for interleaved in (False, True):
        arguments = rope() | {"table": RopeTable(normal(N_TOKENS, 9), normal(N_TOKENS, 9), interleaved)}
        with pytest.raises(ValueError, match="rope: no 2 n_angles <= head_dim"):
            call(kernels, "rope", arguments)


def test_compiled_operations_are_told_every_parameter_by_name(kernel_cache: Path) -> None:
    kernels = load_kernels(None, n_threads=1, cache_folder=kernel_cache)
    assert isinstance(kernels, CompiledKernels)
    x = normal(N_TOKENS, N)
    arguments = {"x": x, "y": x, "out": x.copy(), "n_rows": N_TOKENS, "n": N, "x_bytes": 4 * N, "y_bytes": 4 * N}
    with pytest.raises(TypeError, match=r"add misses \['scale'\], and does not know \['eps'\]"):
        kernels._run("add", **arguments, eps=1.0)
    with pytest.raises(ValueError, match="add: out has the shape"):
        kernels._run("add", **arguments | {"out": x[1:]}, scale=1.0)
    with pytest.raises(ValueError, match="add: x has a step of 256, not x_bytes"):
        kernels._run("add", **arguments | {"x": normal(N_TOKENS, N), "x_bytes": 8 * N}, scale=1.0)
    kernels.close()
