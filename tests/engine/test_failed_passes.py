"""Forward passes that fail: wherever it happens, the memory is then as it was, and goes on with the same bits.

A pass is made to fail at the calls of the engine's functions, one after the other, and where the memory asks for more
of the machine's. Beside it, a memory that never failed goes the same way.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from engine.errors import UnknownTokenError
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels, load_kernels
from engine.memory import AttentionRows, Memory, RecurrentState, compose, kv_rows
from engine.models import Model, load_model
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import N_VOCAB

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS
NAMES = ["llama", "gemma3", "lfm2 with a sliding window", "qwen35", "mamba2 in one group", "rwkv7"]
IDS = np.random.default_rng(0).integers(5, N_VOCAB, 400).astype(np.int32)
STEPS = [40, 1, 1, 1, 5, 1, 1, 206, 1, 1, 1, 9, 1]  # tokens of each pass; buffers are full at 256
ENGINE = str(Path(engine.__file__).parent)
REMEMBERS = ("/memory/", "single_tokens.py", "spinning_team.py", "calls.py", "model.py", "allocate")
N_SAMPLED = 20  # places of a pass


@pytest.fixture(scope="module", params=["numpy", None], ids=["numpy", "compiled"], name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = load_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


@pytest.fixture(params=NAMES, name="model")
def _model(request: pytest.FixtureRequest, kernels: Kernels, tmp_path: Path) -> Model:
    with open_gguf(MODELS[request.param]().write(tmp_path / "model.gguf")) as gguf:
        return load_model(gguf, kernels).model


class Broken(Exception):
    """What a pass fails with."""


class Fuse:
    """Counts the calls of the engine's functions, and raises at one of them."""

    def __init__(self, place: int | None = None) -> None:
        self._place = place
        self.places: list[str] = []

    def run(self, work: Callable[[], np.ndarray]) -> np.ndarray:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        is_function = not code.co_name.startswith("<")  # a generator is also called to be closed
        if (code.co_filename.startswith(ENGINE) and is_function) or code.co_name == "allocate":
            if len(self.places) == self._place:
                raise Broken
            self.places.append(f"{code.co_filename}:{code.co_name}")


def places_to_try(places: list[str], random: np.random.Generator) -> list[int]:
    """Return the first places, where room is made, and some of the others, mostly in what keeps rows and states."""
    remembers = [i for i, place in enumerate(places) if any(word in place for word in REMEMBERS)]
    sampled = [random.permutation(among)[:N_SAMPLED].tolist() for among in (remembers, range(len(places)))]
    return sorted({*remembers[:N_SAMPLED], *sampled[0], *sampled[1]})


def contents(memory: Memory) -> list[object]:
    """Return all that a memory holds, of rows also those behind a window."""
    held: list[object] = []
    for part in memory.parts:
        first = next(lo for lo in range(part.n_tokens + 1) if part.has_rows(lo, part.n_tokens))
        held += [part.n_tokens, first, bytes(part.export_rows(first, part.n_tokens).data), part.checkpoint()]
    return held


def test_a_pass_that_fails_anywhere_leaves_the_memory_as_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*args: object) -> np.ndarray:
        return np.empty(*args)

    monkeypatch.setattr(kv_rows, "np", SimpleNamespace(**{**vars(np), "empty": allocate}))
    random = np.random.default_rng(1)
    untouched, memory = model.new_memory(), model.new_memory()
    for n in STEPS:
        start = memory.n_tokens
        token_ids = IDS[start : start + n]
        before = contents(memory)
        fuse = Fuse()
        expected = fuse.run(lambda token_ids=token_ids: model.forward(token_ids, untouched)).tobytes()
        for place in places_to_try(fuse.places, random):
            failing = Fuse(place)
            try:
                failing.run(lambda token_ids=token_ids: model.forward(token_ids, memory))
            except Broken:
                assert contents(memory) == before, fuse.places[place]
            else:  # a pass that was recorded calls less
                memory.rewind(start)
        assert model.forward(token_ids, memory).tobytes() == expected
        assert contents(memory) == contents(untouched)
    assert [memory.reuse_point(m) for m in range(start)] == [untouched.reuse_point(m) for m in range(start)]


def test_ids_of_no_token_are_refused(model: Model) -> None:
    untouched, memory = model.new_memory(), model.new_memory()
    for n in STEPS:
        start = memory.n_tokens
        before = contents(memory)
        for unknown in (N_VOCAB, -1, 1_000_000, 2**31 - 1, -(2**31)):
            token_ids = IDS[start : start + n].copy()
            token_ids[n // 2] = unknown
            with pytest.raises(UnknownTokenError, match=rf"the token {unknown}, .* it has {N_VOCAB} tokens"):
                model.forward(token_ids, memory)
            assert contents(memory) == before
        ours, theirs = (model.forward(IDS[start : start + n], each) for each in (memory, untouched))
        assert ours.tobytes() == theirs.tobytes()


def test_a_cancelled_pass_leaves_the_memory_as_it_was(model: Model) -> None:
    untouched, memory = model.new_memory(), model.new_memory()
    for n in STEPS:
        start = memory.n_tokens
        before = contents(memory)
        for last in range(len(model.layer_memories)):
            left = iter(range(last))

            def check(left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise Broken

            try:
                model.forward(IDS[start : start + n], memory, between_layers=check)
            except Broken:
                assert contents(memory) == before
            else:
                memory.rewind(start)
        ours, theirs = (model.forward(IDS[start : start + n], each) for each in (memory, untouched))
        assert ours.tobytes() == theirs.tobytes()
        assert contents(memory) == contents(untouched)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_append_that_is_taken_back_brings_back_the_rows_that_it_dropped(data: st.DataObject) -> None:
    memory = compose([[AttentionRows(1, 2, 3, n_swa=70)], [AttentionRows(1, 2, 2)], [RecurrentState((3,))]], np.float32)
    for _ in range(data.draw(st.integers(1, 6))):
        n = data.draw(st.integers(1, 300))
        start = memory.n_tokens
        before = contents(memory)
        memory.append(n)
        fill(memory, start, n)
        memory.rewind(start)
        assert contents(memory) == before
        memory.append(n)
        fill(memory, start, n)
        back = memory.parts[0].reuse_point(data.draw(st.integers(start, start + n)))
        if back and data.draw(st.booleans()):
            memory.parts[0].rewind(back)
            memory.parts[0].append(start + n - back)
            fill(memory, start, n)
        first = contents(memory)[1]
        assert first <= max(0, memory.n_tokens - 70)


def fill(memory: Memory, start: int, n: int) -> None:
    """Write rows that tell their positions."""
    for layer, head_dim_v in ((0, 3), (1, 2)):
        k, v, span = memory.rows(layer)
        positions = np.arange(start, start + n, dtype=np.float32)[:, None, None]
        for rows in (k, v):
            rows[span.end - n : span.end] = positions
        assert v.shape[2] == head_dim_v
