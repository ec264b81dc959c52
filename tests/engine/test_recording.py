"""Steps made of compiled operations: recorded, and repeated with other inputs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels, RopeTable
from engine.kernels.interface import Repeat
from engine.kernels.kv_types import KV_TYPES, RowSpan, quantize_rows
from engine.kernels.reference import ReferenceKernels
from engine.models.weights import constant
from engine.quants.matrix import load_matrix
from tests.instruction_sets import COMPILED, make_kernels
from tests.random_tensors import random_tensor

N = 256  # values of the stream
N_HEAD, HEAD_DIM = 4, 64
N_SEEN, N_ROWS = 20, 300


@pytest.fixture(scope="module", params=COMPILED, name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(request.param, n_threads=2, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


class Network:
    """Weights, inputs and memory of every sort, always the same at first, and an operation for each sort."""

    def __init__(self, kernels: Kernels) -> None:
        self._random = np.random.default_rng(0)
        self.kernels = kernels
        self.x, self.token_ids = self.normal(1, N), np.array([5], np.int32)
        self.tables = [RopeTable(self.normal(1, 16), self.normal(1, 16), interleaved) for interleaved in (False, True)]
        self.span = RowSpan()
        self.rows = {
            name: [quantize_rows(self.normal(N_ROWS, 2, HEAD_DIM), dtype) for _ in "kv"]
            for name, dtype in KV_TYPES.items()
        }
        self.states: dict[str, F32] = {
            "conv": self.normal(N, 3),
            "delta": self.normal(N_HEAD, HEAD_DIM, HEAD_DIM),
            "ssd": self.normal(N_HEAD, HEAD_DIM, HEAD_DIM),
            "scan": self.normal(N, 16),
            "wkv": self.normal(N_HEAD, HEAD_DIM, HEAD_DIM),
        }
        tensors = [random_tensor(GGMLQuantizationType[name], N // 4, N) for name in ("Q4_K", "F16", "Q8_0", "Q4_0")]
        self.matrix = load_matrix(tensors, kernels)
        self.embeddings = load_matrix([random_tensor(GGMLQuantizationType.Q6_K, 30, N)], kernels)
        self.one, self.per_head = self.weight(N), self.weight(N_HEAD)
        self.head, self.conv, self.a = self.weight(HEAD_DIM), self.weight(N, 4), constant(-np.exp(self.normal(N, 16)))

        self.next_token(0)

    def normal(self, *shape: int) -> F32:
        return self._random.standard_normal(shape, np.float32)

    def weight(self, *shape: int) -> F32:
        return constant(self.normal(*shape))

    @property
    def inputs(self) -> Sequence[NDArray[Any]]:
        return [self.x, self.token_ids, *(angles for table in self.tables for angles in (table.cos, table.sin))]

    def next_token(self, token: int) -> None:
        """Set the inputs to those of a token, the same in every network."""
        random = np.random.default_rng(token)
        for array in (self.x, *self.inputs[2:]):
            array[...] = random.standard_normal(array.shape)
        self.token_ids[0] = token % 30
        self.span.move(token % 3, N_SEEN + token, 70, n_rows=N_ROWS)

    def result(self, operation: str) -> list[bytes]:
        """Do an operation; return its result, and the rows and states behind it."""
        out = OPERATIONS[operation](self, self.x)
        return self.bytes_with(out)

    def bytes_with(self, out: F32) -> list[bytes]:
        rows = [array.tobytes() for pair in self.rows.values() for array in pair]
        return [out.tobytes(), *(state.tobytes() for state in self.states.values()), *rows]

    def keep(self, name: str, results: tuple[F32, F32]) -> F32:
        out, self.states[name] = results
        return out.reshape(1, N)


def attention(kv_type: str) -> Callable[[Network, F32], F32]:
    def attend(network: Network, x: F32) -> F32:
        kernels, (k, v) = network.kernels, network.rows[kv_type]
        heads = x.reshape(1, N_HEAD, HEAD_DIM)
        for rows, new in ((k, heads[:, :2]), (v, heads[:, 2:])):
            kernels.store_rows(new, rows, network.span)
        return kernels.attention(heads, k, v, network.span, scale=0.2, n_swa=15, softcap=5.0, sinks=network.per_head)

    return attend


def by_head(x: F32) -> F32:
    return x.reshape(1, N_HEAD, HEAD_DIM)


def delta_net(network: Network, x: F32) -> F32:
    heads, gates, weights = by_head(x), x[:, :N_HEAD], network.per_head
    return network.keep(
        "delta",
        network.kernels.gated_delta_net(
            heads,
            heads,
            heads,
            alpha=gates,
            beta=gates,
            s=network.states["delta"],
            a=weights,
            dt_bias=weights,
            eps=1e-6,
        ),
    )


def ssd(network: Network, x: F32) -> F32:
    shared, weights = x[:, :HEAD_DIM].reshape(1, 1, HEAD_DIM), network.per_head
    return network.keep(
        "ssd",
        network.kernels.ssd_scan(
            by_head(x), shared, shared, dt=x[:, :N_HEAD], s=network.states["ssd"], a=weights, d=weights, dt_bias=weights
        ),
    )


def selective_scan(network: Network, x: F32) -> F32:
    b, c = x[:, :16], x[:, 16:32]
    return network.keep(
        "scan",
        network.kernels.selective_scan(
            x, b, c, dt=x, s=network.states["scan"], a=network.a, d=network.one, dt_bias=network.one
        ),
    )


def wkv7(network: Network, x: F32) -> F32:
    heads = by_head(x)
    return network.keep(
        "wkv",
        network.kernels.wkv7(heads, heads, heads, log_w=heads, a=heads, b=heads, s=network.states["wkv"]),
    )


def all_of_them(network: Network, x: F32) -> F32:
    for name, operation in OPERATIONS.items():
        if name != "all":
            x = network.kernels.rms_norm(operation(network, x), network.one, 1e-6)
    return x


OPERATIONS: dict[str, Callable[[Network, F32], F32]] = {
    "matmul": lambda n, x: n.kernels.matmul(x, n.matrix),
    "take_rows": lambda n, x: n.kernels.add(x, n.kernels.take_rows(n.embeddings, n.token_ids)),
    "add": lambda n, x: n.kernels.add(x, n.one, scale=0.7),
    "multiply": lambda n, x: n.kernels.multiply(x, x),
    "rms_norm": lambda n, x: n.kernels.rms_norm(by_head(x), n.head, 1e-5).reshape(1, N),
    "rope of halves": lambda n, x: n.kernels.rope(by_head(x), n.tables[0]).reshape(1, N),
    "rope of neighbors": lambda n, x: n.kernels.rope(by_head(x), n.tables[1]).reshape(1, N),
    "silu_mul": lambda n, x: n.kernels.silu_mul(x, x),
    "gelu_mul": lambda n, x: n.kernels.gelu_mul(x, x),
    "sigmoid_mul": lambda n, x: n.kernels.sigmoid_mul(x, x),
    **{f"attention over {kv_type}": attention(kv_type) for kv_type in KV_TYPES},
    "short_conv": lambda n, x: n.keep("conv", n.kernels.short_conv(x, n.states["conv"], n.conv, silu=True)),
    "delta net": delta_net,
    "ssd": ssd,
    "selective scan": selective_scan,
    "wkv7": wkv7,
    "all": all_of_them,
}


def record(network: Network, operation: str) -> tuple[F32, Repeat]:
    """Record an operation of the network as it is now; return its result and what does it again."""
    out, repeat = network.kernels.record(lambda: OPERATIONS[operation](network, network.x), inputs=network.inputs)
    assert repeat is not None
    return out, repeat


@pytest.mark.parametrize("operation", OPERATIONS)
def test_repeating_gives_the_bits_of_doing_it_anew(kernels: Kernels, operation: str) -> None:
    recorded, anew = Network(kernels), Network(kernels)
    before = dict(recorded.states)
    out, repeat = record(recorded, operation)
    assert recorded.bytes_with(out) == anew.result(operation)
    for token in range(1, 7):
        for network in (recorded, anew):
            network.next_token(token)
        repeat()
        before, recorded.states = recorded.states, before  # they change places
        assert recorded.bytes_with(out) == anew.result(operation)


def test_nothing_in_between_hinders_a_repetition(kernels: Kernels, kernel_cache: Path) -> None:
    fresh = make_kernels(kernels.name, n_threads=2, cache_folder=kernel_cache)  # whose scratch memory has yet to grow
    recorded, anew = ([Network(fresh) for _ in range(2)] for _ in range(2))
    befores, outs, repeats = [], [], []
    for network, other in zip(recorded, anew, strict=True):
        befores.append(dict(network.states))
        out, repeat = record(network, "all")
        assert other.result("all")[0] == out.tobytes()
        outs.append(out)
        repeats.append(repeat)
    more = recorded[0].normal(200, N)
    for token in range(1, 4):
        fresh.matmul(more, recorded[0].matrix)
        heads = more.reshape(200, N_HEAD, HEAD_DIM)
        for k, v in recorded[0].rows.values():
            fresh.attention(heads, k, v, RowSpan(end=N_ROWS), scale=0.2, n_swa=None)
        for i in (0, 1):
            recorded[i].next_token(token + i)
            anew[i].next_token(token + i)
            repeats[i]()
            befores[i], recorded[i].states = recorded[i].states, befores[i]
            assert recorded[i].bytes_with(outs[i]) == anew[i].result("all")
    fresh.close()


def test_the_number_of_threads_does_not_change_a_bit(kernels: Kernels, kernel_cache: Path) -> None:
    alone = make_kernels(kernels.name, n_threads=1, cache_folder=kernel_cache)
    results = []
    for some in (alone, kernels):
        network = Network(some)
        out, repeat = record(network, "all")
        network.next_token(1)
        repeat()
        results.append(out.tobytes())
    alone.close()
    assert results[0] == results[1]


def not_repeatable() -> dict[str, Callable[[Network], F32]]:
    loose = np.ones(N, np.float32)  # no weight: whoever holds it could change it
    return {
        "NumPy in between": lambda n: n.kernels.add(np.tanh(n.kernels.add(n.x, n.one)), n.one),
        "NumPy before": lambda n: n.kernels.add(n.x * 2, n.one),
        "NumPy behind": lambda n: n.kernels.add(n.x, n.one) * 2,
        "an array of anyone's": lambda n: n.kernels.add(n.x, loose),
        "nothing": lambda n: n.x + 1,
    }


@pytest.mark.parametrize("sort", not_repeatable())
def test_what_is_not_made_of_operations_alone_cannot_be_repeated(kernels: Kernels, sort: str) -> None:
    network, step = Network(kernels), not_repeatable()[sort]
    expected = step(network)
    out, repeat = kernels.record(lambda: step(network), inputs=network.inputs)
    assert repeat is None
    assert np.array_equal(out, expected)
    assert out.flags.writeable
    record(network, "all")  # what can be is not kept from it


def test_results_are_safe_from_changes_while_a_step_is_recorded(kernels: Kernels) -> None:
    network, results = Network(kernels), list[F32]()

    def step() -> F32:
        results.append(kernels.add(network.x, network.one))
        results[0][...] += 1
        return results[0]

    with pytest.raises(ValueError, match="read-only"):
        kernels.record(step, inputs=network.inputs)
    results[0][...] += 1
    record(network, "all")


def test_results_can_be_changed_afterwards(kernels: Kernels) -> None:
    network, results = Network(kernels), list[F32]()

    def step() -> F32:
        results.append(kernels.matmul(network.x, network.matrix))
        results.append(kernels.rms_norm(by_head(results[0]), network.head, 1e-6))
        results.extend(kernels.short_conv(results[1].reshape(1, N), network.states["conv"], network.conv))
        return results[2]

    kernels.record(step, inputs=network.inputs)
    for array in results:
        array[...] = 0
    assert not network.one.flags.writeable
    assert network.x.flags.writeable


def test_a_step_that_fails_is_not_recorded_further(kernels: Kernels) -> None:
    network = Network(kernels)

    def fail() -> F32:
        kernels.add(network.x, network.one)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kernels.record(fail, inputs=network.inputs)
    assert kernels.add(network.x, network.one).flags.writeable
    record(network, "all")


def test_the_reference_kernels_do_a_step_once() -> None:
    kernels = ReferenceKernels(n_threads=1)
    x = np.ones((1, 4), np.float32)
    out, repeat = kernels.record(lambda: kernels.add(x, x), inputs=[x])
    assert repeat is None
    assert np.array_equal(out, x + x)
    kernels.close()
