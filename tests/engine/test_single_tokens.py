"""Tokens decoded one by one: what was recorded must give the bits that every layer, called anew, gives.

What may come between two tokens (longer ubatches, rewinding, cancelling, waking) is told as a path, which is gone
twice: with recording, and without.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_hexdigest

from engine.arrays import F32
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels
from engine.kernels.interface import Repeat
from engine.kernels.kv_types import BLOCK_SIZE, KV_TYPES
from engine.memory import AttentionRows, RowChunk
from engine.models import Model, load_model
from tests.instruction_sets import COMPILED, DOUBLES, FASTEST_AND_DOUBLES, make_kernels
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import N_VOCAB

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS
RECORDED = ["llama", "gemma3", "qwen2", "lfm2", "mamba2 in one group", "qwen35"]  # of which nothing is left to Python
IDS = np.random.default_rng(0).integers(5, N_VOCAB, 400).astype(np.int32)
N = 40  # tokens that are decoded


@pytest.fixture(scope="module", name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = make_kernels(getattr(request, "param", COMPILED[0]), n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def load(name: str, kernels: Kernels, folder: Path) -> Model:
    with open_gguf(MODELS[name]().write(folder / "model.gguf")) as gguf:
        return load_model(gguf, kernels).model


@pytest.fixture(scope="module", params=MODELS, name="model")
def _model(request: pytest.FixtureRequest, kernels: Kernels, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(request.param, kernels, tmp_path_factory.mktemp("models"))


@dataclass(frozen=True)
class Checkpoint:
    """What a memory held of n tokens."""

    n: int
    rows: dict[str, list[RowChunk]]
    state: bytes | None

    def digest(self) -> str:
        digest = xxh3_64(self.state or b"")
        for chunks in self.rows.values():
            for chunk in chunks:
                digest.update(chunk.data)
        return digest.hexdigest()


class Walk:
    """What a model says of the tokens of a memory."""

    def __init__(self, model: Model, kv_type: str) -> None:
        self.model = model
        self._kv_type = KV_TYPES[kv_type]
        self.memory = model.new_memory(self._kv_type)
        self.said: list[str] = []  # digests of hidden states

    def read(self, n: int) -> None:
        """Evaluate the next tokens in one ubatch."""
        start = self.memory.n_tokens
        self.said.append(xxh3_64_hexdigest(self.model.forward(IDS[start : start + n], self.memory).tobytes()))

    def decode(self, n: int) -> None:
        """Evaluate the next tokens one by one."""
        for _ in range(n):
            self.read(1)

    def rewind(self, n: int) -> None:
        """Go back to n tokens, or as far as that is needed."""
        self.memory.rewind(self.memory.reuse_point(n))

    def cancel(self, layer: int) -> None:
        """Have the next token cancelled before a layer, or taken back where nobody asked as often."""
        n, asked = self.memory.n_tokens, 0

        def check() -> None:
            nonlocal asked
            asked += 1
            if asked > layer:
                raise InterruptedError

        try:
            self.model.forward(IDS[n : n + 1], self.memory, between_layers=check)
            self.memory.rewind(n)
        except InterruptedError:
            assert self.memory.n_tokens == n

    def save(self) -> Checkpoint:
        """Return what is remembered."""
        n = self.memory.n_tokens
        rows = {part.kind: [part.export_rows(part.first_row(n), n)] for part in self.memory.parts if part.row_nbytes}
        return Checkpoint(n, rows, self.memory.checkpoint())

    def restore(self, checkpoint: Checkpoint, *, anew: bool) -> None:
        """Remember that instead, in another memory if `anew`."""
        if anew:
            self.memory = self.model.new_memory(self._kv_type)
        self.memory.restore(checkpoint.n, checkpoint.rows, checkpoint.state)


def decoding(walk: Walk) -> None:
    walk.decode(N)


def a_growing_buffer(walk: Walk) -> None:
    walk.read(240)
    walk.decode(N)


def rewinding(walk: Walk) -> None:
    walk.decode(N)
    for n in (N - 1, N - 2, N // 2, 0):
        walk.rewind(n)
        walk.decode(N // 4)


def longer_ubatches(walk: Walk) -> None:
    for n in (5, 2, 70):
        walk.decode(4)
        walk.read(n)
    walk.decode(4)


def cancelling(walk: Walk) -> None:
    for layer, n in ((1, 1), (1, 1), (0, 2), (1, 2), (1, 1), (0, 5)):
        walk.cancel(layer)
        walk.decode(n)


def restoring(walk: Walk) -> None:
    walk.decode(N // 2)
    checkpoint = walk.save()
    before = checkpoint.digest()
    for anew in (False, False, True, True, False):
        walk.decode(N // 8)
        walk.restore(checkpoint, anew=anew)
    assert checkpoint.digest() == before


PATHS: Sequence[Callable[[Walk], None]] = [
    decoding, a_growing_buffer, rewinding, longer_ubatches, cancelling, restoring
]  # fmt: skip


def kv_types_of(model: Model) -> list[str]:
    """Return floats and, where the heads of a model fit them, blocks."""
    rows = [need for needs in model.layer_memories for need in needs if isinstance(need, AttentionRows)]
    if not rows:
        return ["f16"]
    whole_blocks = all(need.head_dim_k % BLOCK_SIZE == need.head_dim_v % BLOCK_SIZE == 0 for need in rows)
    return ["f16", "q8_0" if whole_blocks else "f32"]


def unrecorded(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    monkeypatch.setattr(type(kernels), "record", lambda self, step, *, inputs: (step(), None))


def gone(path: Callable[[Walk], None], model: Model, kv_type: str) -> list[str]:
    """Return all that is said on a path, and what is remembered at its end."""
    walk = Walk(model, kv_type)
    path(walk)
    return [*walk.said, walk.save().digest()]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_what_is_said_on_a_path_does_not_depend_on_recording(
    path: Callable[[Walk], None], model: Model, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv_types = kv_types_of(model)
    recorded = [gone(path, model, kv_type) for kv_type in kv_types]
    unrecorded(monkeypatch, kernels)
    assert recorded == [gone(path, model, kv_type) for kv_type in kv_types]


def test_two_memories_take_turns(model: Model, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns() -> list[list[str]]:
        walks = [Walk(model, "f16") for _ in range(2)]
        walks[1].read(7)
        for _ in range(N // 2):
            for walk in walks:
                walk.decode(1)
        return [walk.said for walk in walks]

    recorded = in_turns()
    unrecorded(monkeypatch, kernels)
    assert recorded == in_turns()
    assert recorded == [gone(lambda walk: walk.decode(N // 2), model, "f16")[:-1], recorded[1]]


@pytest.fixture(name="repeatable")
def _repeatable(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each step that is recorded whether it can be repeated."""
    noted, record = list[bool](), type(kernels).record

    def note(
        recording: Kernels, step: Callable[[], F32], *, inputs: Sequence[NDArray[Any]]
    ) -> tuple[F32, Repeat | None]:
        out, repeat = record(recording, step, inputs=inputs)
        noted.append(repeat is not None)
        return out, repeat

    monkeypatch.setattr(type(kernels), "record", note)
    return noted


@pytest.mark.parametrize("kernels", DOUBLES, indirect=True)
@pytest.mark.parametrize("name", RECORDED)
def test_neither_does_it_with_other_registers(
    name: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = load(name, kernels, tmp_path)
    recorded = [gone(path, model, "f16") for path in PATHS]
    unrecorded(monkeypatch, kernels)
    assert recorded == [gone(path, model, "f16") for path in PATHS]


@pytest.mark.parametrize("kernels", FASTEST_AND_DOUBLES, indirect=True)
@pytest.mark.parametrize("name", RECORDED)
def test_one_recording_serves_until_rows_move(
    name: str, kernels: Kernels, repeatable: list[bool], tmp_path: Path
) -> None:
    model = load(name, kernels, tmp_path)
    for kv_type in kv_types_of(model):
        repeatable.clear()
        walk = Walk(model, kv_type)
        walk.decode(N)
        assert repeatable == [True]
        walk.decode(300 - N)
        has_rows = any(part.row_nbytes for part in walk.memory.parts)
        assert repeatable == [True] * (1 + has_rows)


def test_a_recording_goes_with_the_memory(kernels: Kernels, tmp_path: Path) -> None:
    model = load("qwen35", kernels, tmp_path)
    walk = Walk(model, "f16")
    walk.decode(5)
    memory = ref(walk.memory)
    rows = ref(walk.memory.rows(3)[0])
    del walk
    gc.collect()
    assert memory() is None
    assert rows() is None
