"""The conformance suite: every kind of memory, and every composition of them, keeps the one protocol.

Each case is a small network whose layers use the memory exactly as a model's layers do. What is compared is what the
network says after a path through the protocol with what it says after reading the same tokens afresh.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.arrays import F32
from engine.kernels.kv_types import KV_TYPES
from engine.kernels.reference import ReferenceKernels
from engine.memory import AttentionRows, LayerMemory, LayerState, Memory, RecurrentState, RowChunk, compose
from engine.memory.attention import AttentionMemory

N_EMBD, N_HEAD_KV, N_SWA, N_UBATCH = 64, 2, 5, 4  # heads of 32 values: one block of the quantized K/V types

KERNELS = ReferenceKernels(n_threads=1)
CONV_WEIGHT = np.random.default_rng(0).standard_normal((N_EMBD, 3), np.float32) / 2


@dataclass(frozen=True)
class AttentionLayer:
    """Attention with a different position-dependent key for every token, so that a misplaced row shows."""

    n_swa: int | None

    @property
    def needs(self) -> Sequence[LayerMemory]:
        return (AttentionRows(N_HEAD_KV, N_EMBD // N_HEAD_KV, N_EMBD // N_HEAD_KV, n_swa=self.n_swa),)

    def __call__(self, layer: int, x: F32, memory: Memory, start: int) -> F32:
        heads = x.reshape(len(x), N_HEAD_KV, -1)
        position = np.arange(start, start + len(x), dtype=np.float32)[:, None, None]
        k, v, span = memory.extend(layer, np.sin(heads + position), heads * (layer + 1))
        out = KERNELS.attention(heads, k, v, span, scale=0.2, n_swa=self.n_swa)
        return x + out


class ConvLayer:
    """A convolution over three tokens."""

    needs = (RecurrentState(r=(N_EMBD, 2)),)

    def __call__(self, layer: int, x: F32, memory: Memory, start: int) -> F32:
        out, r = KERNELS.short_conv(x, memory.state(layer).r, CONV_WEIGHT)
        memory.set_state(layer, LayerState(r, np.zeros(0, np.float32)))
        return x + out


class DeltaNetLayer:
    """A convolution, and behind it a delta rule."""

    needs = (RecurrentState(r=(N_EMBD, 2), s=(N_HEAD_KV, N_EMBD // N_HEAD_KV, N_EMBD // N_HEAD_KV)),)

    def __call__(self, layer: int, x: F32, memory: Memory, start: int) -> F32:
        state = memory.state(layer)
        mixed, r = KERNELS.short_conv(x, state.r, CONV_WEIGHT, silu=True)
        heads = mixed.reshape(len(x), N_HEAD_KV, -1)
        alpha, beta = x[:, :N_HEAD_KV], x[:, -N_HEAD_KV:]
        a, dt_bias = np.full(N_HEAD_KV, -0.1, np.float32), np.zeros(N_HEAD_KV, np.float32)
        out, s = KERNELS.gated_delta_net(
            heads, np.sin(heads), heads, alpha=alpha, beta=beta, s=state.s, a=a, dt_bias=dt_bias, eps=1e-6
        )
        memory.set_state(layer, LayerState(r, s))
        return x + out.reshape(x.shape)


class ParallelLayer:
    """Attention and a delta net side by side: rows and a state in one layer."""

    @property
    def needs(self) -> Sequence[LayerMemory]:
        return (*FULL.needs, *DELTA.needs)

    def __call__(self, layer: int, x: F32, memory: Memory, start: int) -> F32:
        return FULL(layer, x, memory, start) + DELTA(layer, x, memory, start) - x


Layer = AttentionLayer | ConvLayer | DeltaNetLayer | ParallelLayer
FULL, WINDOW, CONV, DELTA, PARALLEL = (
    AttentionLayer(None),
    AttentionLayer(N_SWA),
    ConvLayer(),
    DeltaNetLayer(),
    ParallelLayer(),
)
NETWORKS: dict[str, Sequence[Layer]] = {
    "attention": [FULL, FULL],
    "sliding window": [WINDOW, WINDOW],
    "recurrent": [DELTA, CONV, DELTA],
    "attention and sliding window": [WINDOW, FULL, WINDOW],
    "hybrid": [CONV, FULL, DELTA],
    "hybrid with sliding window": [DELTA, WINDOW, FULL],
    "hybrid in each layer": [PARALLEL, PARALLEL],
}


class Network:
    """Layers and the memory that they need."""

    def __init__(self, layers: Sequence[Layer], kv_type: str = "f32") -> None:
        self.layers = layers
        self.kv_type = KV_TYPES[kv_type]

    def new_memory(self) -> Memory:
        return compose([layer.needs for layer in self.layers], self.kv_type)

    def evaluate(self, tokens: Sequence[int], memory: Memory) -> F32:
        """Evaluate one ubatch; return the last token's output."""
        start = memory.n_tokens
        memory.append(len(tokens))
        x = np.stack([np.random.default_rng(token).standard_normal(N_EMBD) for token in tokens])
        x = x.astype(np.float32)
        for i, layer in enumerate(self.layers):
            x = layer(i, x, memory, start)
        return x[-1]

    def read(self, tokens: Sequence[int], memory: Memory, split: Iterator[int] | None = None) -> F32:
        """Evaluate tokens in ubatches of the sizes that `split` gives."""
        out = np.zeros(N_EMBD, np.float32)
        position = 0
        while position < len(tokens):
            n = next(split) if split else N_UBATCH
            out = self.evaluate(tokens[position : position + n], memory)
            position += n
        return out


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint as the slot file keeps it: rows by part in pieces, and a state."""

    n: int
    rows: dict[str, list[RowChunk]]
    state: bytes | None


def save(memory: Memory, *, piece: int = 3) -> Snapshot:
    n = memory.n_tokens
    rows = {}
    for part in memory.parts:
        lo = part.first_row(n)
        rows[part.kind] = [part.export_rows(i, min(i + piece, n)) for i in range(lo, n, piece)]
    return Snapshot(n, rows, memory.checkpoint())


@pytest.fixture(params=NETWORKS, name="network")
def _network(request: pytest.FixtureRequest) -> Network:
    return Network(NETWORKS[request.param])


@pytest.fixture(params=itertools.product(NETWORKS, KV_TYPES), ids=" ".join, name="typed_network")
def _typed_network(request: pytest.FixtureRequest) -> Network:
    name, kv_type = request.param
    return Network(NETWORKS[name], kv_type)


TOKENS = list(range(100, 130))


def afresh(network: Network, tokens: Sequence[int]) -> F32:
    return network.read(tokens, network.new_memory())


def test_any_split_into_ubatches_gives_the_same(network: Network) -> None:
    expected = afresh(network, TOKENS)
    for sizes in ([1] * 30, [30], [7, 1, 13, 9], [4] * 8):
        out = network.read(TOKENS, network.new_memory(), iter(sizes))
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_the_same_split_gives_the_same_bits(typed_network: Network) -> None:
    assert np.array_equal(afresh(typed_network, TOKENS), afresh(typed_network, TOKENS))


@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 11, 29, 30])
def test_a_restored_checkpoint_goes_on_with_the_same_bits(typed_network: Network, n: int) -> None:
    live = typed_network.new_memory()
    typed_network.read(TOKENS[:n], live)
    snapshot = save(live)
    restored = typed_network.new_memory()
    typed_network.read([1, 2, 3], restored)  # what was there before must not matter
    restored.restore(snapshot.n, snapshot.rows, snapshot.state)
    assert restored.n_tokens == n
    more = [7, 8, 9, 10, 11, 12, 13]
    assert np.array_equal(typed_network.read(more, restored), typed_network.read(more, live))
    assert save(restored).state == save(live).state


def test_a_checkpoint_does_not_change_when_the_memory_goes_on(typed_network: Network) -> None:
    live = typed_network.new_memory()
    typed_network.read(TOKENS[:10], live)
    snapshot = save(live)
    typed_network.read(TOKENS[10:], live)
    live.restore(snapshot.n, snapshot.rows, snapshot.state)
    out = typed_network.read(TOKENS[10:], live)
    again = typed_network.new_memory()
    typed_network.read(TOKENS[:10], again)
    assert np.array_equal(out, typed_network.read(TOKENS[10:], again))


def test_rewinding_to_a_reuse_point_is_as_if_nothing_had_followed(network: Network) -> None:
    for n in range(len(TOKENS) + 1):
        memory = network.new_memory()
        network.read(TOKENS, memory)
        m = memory.reuse_point(n)
        assert m <= n
        memory.rewind(m)
        assert memory.n_tokens == m
        out = network.read([50, 51, 52, 53, 54], memory)
        expected = network.new_memory()
        network.read(TOKENS[:m], expected)
        np.testing.assert_allclose(out, network.read([50, 51, 52, 53, 54], expected), rtol=1e-5, atol=1e-5)


def test_the_present_length_is_always_a_reuse_point(network: Network) -> None:
    memory = network.new_memory()
    for token in TOKENS:
        assert memory.reuse_point(memory.n_tokens + 5) == memory.n_tokens
        network.evaluate([token], memory)


def test_rewindable_memory_returns_to_every_length(network: Network) -> None:
    memory = network.new_memory()
    network.read([token % 50 for token in range(600)], memory)
    points = [memory.reuse_point(n) for n in range(601)]
    assert memory.rewindable == (points == list(range(601)))


def test_an_append_that_is_taken_back_leaves_no_trace(typed_network: Network) -> None:
    memory = typed_network.new_memory()
    typed_network.read(TOKENS[:20], memory)
    before = save(memory)
    memory.append(9)
    for i, layer in enumerate(typed_network.layers):  # layers have written already when a job is cancelled
        for need in layer.needs:
            match need:
                case RecurrentState(r, s):
                    memory.set_state(i, LayerState(np.full(r, 99, np.float32), np.full(s, 99, np.float32)))
                case AttentionRows(n_head_kv, head_dim, _):
                    k = np.full((9, n_head_kv, head_dim), 99, np.float32)
                    memory.extend(i, k, k)
    memory.rewind(20)
    after = save(memory)
    assert after.state == before.state
    for kind, chunks in before.rows.items():
        assert [bytes(c.data) for c in chunks] == [bytes(c.data) for c in after.rows[kind]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[1:],
        lambda rows: rows[:-1],
        lambda rows: [*rows[:1], *rows[2:]],
        lambda rows: [RowChunk(c.lo, c.hi, bytes(c.data)[:-1]) for c in rows],
        lambda rows: [],
    ],
    ids=["first gone", "last gone", "middle gone", "cut", "none"],
)
def test_rows_that_do_not_fit_are_refused_and_leave_an_empty_memory(
    network: Network, spoil: Callable[[list[RowChunk]], list[RowChunk]]
) -> None:
    memory = network.new_memory()
    network.read(TOKENS, memory)
    snapshot = save(memory, piece=1)
    rows = {
        part.kind: spoil(snapshot.rows[part.kind]) if part.row_nbytes else snapshot.rows[part.kind]
        for part in memory.parts
    }
    state = b"x" if all(not part.row_nbytes for part in memory.parts) else snapshot.state
    with pytest.raises(ValueError, match=r"row|value|element"):
        memory.restore(snapshot.n, rows, state)
    assert memory.n_tokens == 0
    assert np.array_equal(network.read(TOKENS, memory), afresh(network, TOKENS))


def test_numbers_that_are_none_are_refused(typed_network: Network) -> None:
    memory = typed_network.new_memory()
    typed_network.read(TOKENS, memory)
    snapshot = save(memory)
    if snapshot.state is not None:
        state = snapshot.state[:-4] + np.float32(np.inf).tobytes()
        with pytest.raises(ValueError, match="not finite"):
            memory.restore(snapshot.n, snapshot.rows, state)
    for kind in (part.kind for part in memory.parts if part.row_nbytes):
        *chunks, last = snapshot.rows[kind]
        spoiled = RowChunk(last.lo, last.hi, b"\xff" * 34 + bytes(last.data)[34:])
        with pytest.raises(ValueError, match="not finite"):
            memory.restore(snapshot.n, {**snapshot.rows, kind: [*chunks, spoiled]}, snapshot.state)
        assert memory.n_tokens == 0


def test_memory_goes_forward_again_where_it_was_cut_back(typed_network: Network) -> None:
    memory = typed_network.new_memory()
    typed_network.read(TOKENS, memory)
    if not memory.rewindable:
        return
    before = save(memory)
    values = [list(part.row_values(7, 12)) for part in memory.parts]
    rows = {part.kind: part.export_rows(7, 12) for part in memory.parts}
    memory.rewind(7)
    typed_network.read(TOKENS[:5], memory)
    assert any(
        not np.array_equal(a, b)
        for part, known in zip(memory.parts, values, strict=True)
        for a, b in zip(known, part.row_values(7, 12), strict=True)
    )
    memory.reinstate(len(TOKENS), rows)
    after = save(memory)
    for kind, chunks in before.rows.items():
        assert [bytes(c.data) for c in chunks] == [bytes(c.data) for c in after.rows[kind]]
    assert np.array_equal(typed_network.read(TOKENS[:3], memory), _gone_on(typed_network, before))


def _gone_on(network: Network, snapshot: Snapshot) -> F32:
    memory = network.new_memory()
    memory.restore(snapshot.n, snapshot.rows, snapshot.state)
    return network.read(TOKENS[:3], memory)


def test_rows_stay_where_they_are_within_a_generation(typed_network: Network) -> None:
    memory, places = typed_network.new_memory(), dict[int, list[int]]()
    layers = [layer for part in memory.parts if isinstance(part, AttentionMemory) for layer in part.layers]

    def check() -> None:
        now = [rows.ctypes.data for layer in layers for rows in memory.rows(layer)[:2]]
        assert places.setdefault(memory.generation, now) == now

    for token in range(300):
        typed_network.evaluate([token % 9], memory)
        check()
    snapshot = save(memory)
    memory.restore(snapshot.n, snapshot.rows, snapshot.state)
    check()
    assert len(places) <= 2  # room for 256 rows at first


def test_a_window_needs_and_keeps_a_bounded_number_of_rows() -> None:
    network = Network(NETWORKS["sliding window"])
    memory = network.new_memory()
    for i in range(400):
        network.evaluate([i], memory)
    (part,) = memory.parts
    assert part.first_row(400) == 400 - N_SWA
    assert memory.nbytes <= 2 * 256 * part.row_nbytes  # of which half is what the newest append dropped


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NETWORKS)), st.data())
def test_any_path_through_the_protocol_ends_as_a_fresh_evaluation_would(name: str, data: st.DataObject) -> None:
    network = Network(NETWORKS[name])
    memory, tokens = network.new_memory(), list[int]()
    kept: list[tuple[Snapshot, list[int]]] = []
    for step in data.draw(st.lists(st.sampled_from(["append", "rewind", "checkpoint", "restore"]), max_size=14)):
        if step == "append":
            new = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
            network.evaluate(new, memory)
            tokens += new
        elif step == "rewind":
            n = memory.reuse_point(data.draw(st.integers(0, len(tokens))))
            memory.rewind(n)
            del tokens[n:]
        elif step == "checkpoint":
            kept.append((save(memory, piece=data.draw(st.integers(1, 9))), list(tokens)))
        elif kept:
            snapshot, kept_tokens = data.draw(st.sampled_from(kept))
            memory.restore(snapshot.n, snapshot.rows, snapshot.state)
            tokens = list(kept_tokens)
    out = network.evaluate([3, 1, 4], memory)
    np.testing.assert_allclose(out, afresh(network, [*tokens, 3, 1, 4]), rtol=1e-4, atol=1e-4)
