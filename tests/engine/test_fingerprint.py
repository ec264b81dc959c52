"""What tells models apart: all tensors, and all metadata that shaped the model as it was loaded."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.conversation import Conversation
from engine.errors import DormouseError
from engine.formats.gguf import open_gguf
from engine.generate import Limits
from engine.kernels import Kernels, load_kernels
from engine.models.config import Hyperparameters
from engine.models.metadata import ShapingMetadata
from engine.runtime import EngineSettings, Runtime
from engine.slot.file.repair import open_repaired
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.turn import Turn
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import TinyModel
from tests.walk import ScriptedSampler

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS


@pytest.fixture(scope="module", name="kernels")
def _kernels() -> Iterator[Kernels]:
    kernels = load_kernels("numpy", n_threads=1)
    yield kernels
    kernels.close()


def load(model: TinyModel, path: Path, kernels: Kernels) -> Runtime:
    return Runtime.load(model.write(path), kernels, EngineSettings())


def metadata_read(path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what loading a model reads, by key."""
    doors: list[ShapingMetadata] = []
    with monkeypatch.context() as patched:
        init = Hyperparameters.__init__

        def noted(self: Hyperparameters, gguf: object) -> None:
            init(self, gguf)
            doors.append(self.metadata)

        patched.setattr(Hyperparameters, "__init__", noted)
        Runtime.load(path, kernels, EngineSettings())
    return {key: value for door in doors for key, value in door.read.items()}


def changed(value: object) -> list[object]:
    """Return other values of a kind, some of which a model may be able to have."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2, max(1, value // 2), value + 32]
        case float():
            return [value * 1.25 + 0.125]
        case str():
            return [f"{value}x", "none"]
        case np.ndarray():
            return [np.where(np.arange(len(value)) == at, new, value).tolist() for at in (0, -1) for new in (0, 1, 2)]
        case list():
            return [value[::-1]]
    raise AssertionError(value)


@pytest.mark.parametrize("name", MODELS)
def test_each_key_that_was_read_tells_models_apart(
    name: str, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    runtime = load(model, tmp_path / "model.gguf", kernels)
    store = Store(lambda: SlotFile.create(":memory:"), on_error=lambda error: pytest.fail(str(error)))
    take_a_turn(Conversation(store, None), runtime)
    read = metadata_read(runtime.path, kernels, monkeypatch)
    own = {key.removeprefix(f"{model.architecture}.") for key, value in read.items() if value is not None}
    assert {"block_count", "embedding_length", "context_length"} <= own
    n_told_apart = 0
    for key in own & model.metadata.keys():
        before = model.metadata[key]
        for value in changed(np.array(before) if isinstance(before, list) else before):
            other = MODELS[name]()
            other.metadata[key] = value
            try:
                loaded = load(other, tmp_path / "other.gguf", kernels)
            except DormouseError:
                continue  # no such model can be
            if np.array_equal(value, before):
                continue
            assert loaded.fingerprint != runtime.fingerprint, (key, value)
            reuse = Conversation(store, None).wake(loaded)[0]
            assert (reuse.n, reuse.reason) == (0, "other_model"), (key, value)
            n_told_apart += 1
            break
    store.close()
    assert n_told_apart >= 2
    again = load(MODELS[name](), tmp_path / "again.gguf", kernels)
    assert again.fingerprint == runtime.fingerprint


def take_a_turn(conversation: Conversation, runtime: Runtime) -> None:
    pending = conversation.begin_send("the hare was at tea").result()
    letters = runtime.tokenizer.encode("abc", parse_special=False).tolist()
    sampler = ScriptedSampler(5, 0, min(runtime.tokenizer.vocabulary.special.end_of_generation), letters)
    limits = Limits(runtime.n_ctx)
    for _ in Turn(conversation, pending, runtime, sampler, limits, lambda: None, lambda slot, prompt: None).run():
        pass


def test_a_name_is_none_of_the_metadata_that_shape_a_model(kernels: Kernels, tmp_path: Path) -> None:
    prints = set()
    for path in ("one.gguf", "two.gguf"):
        model = load(full_attention.llama(), tmp_path / path, kernels)
        prints.add(model.fingerprint)
        assert model.model.config.name == Path(path).stem
    assert len(prints) == 1


@pytest.mark.parametrize("present", [False, True])
def test_absent_keys_count_too(kernels: Kernels, tmp_path: Path, present: bool) -> None:
    """A key that the file lacks, and one that says what is taken in its absence, are not told apart from outside."""
    model = full_attention.llama()
    if present:
        model.metadata["made.up"] = "none"
    with open_gguf(model.write(tmp_path / "model.gguf")) as gguf:
        door = ShapingMetadata(gguf)
        before = door.digest()
        assert ("llama.made.up" in door) == present
        assert door.digest() != before
        assert door.read == {"llama.made.up": "none" if present else None}


class Older:
    """A slot file as versions before layout 3 left it: its states are noted under a fingerprint of the tensors."""

    def __init__(self, folder: Path, kernels: Kernels) -> None:
        self.runtime = load(full_attention.llama(), folder / "model.gguf", kernels)
        self.path = folder / "old.slot"
        self.told: list[str] = []
        conversation = self.open()
        take_a_turn(conversation, self.runtime)
        conversation.store.call(
            lambda file: file.recognize_model(conversation.model_id, self.runtime.tensor_fingerprint)
        ).result()
        conversation.close()

    def open(self) -> Conversation:
        def open_file() -> SlotFile:
            return open_repaired(self.path) if self.path.exists() else SlotFile.create(self.path)

        return Conversation(Store(open_file, on_error=lambda error: self.told.append(str(error))), self.path)

    def reuse(self, runtime: Runtime) -> tuple[int, str]:
        conversation = self.open()
        reuse = conversation.wake(runtime)[0]
        conversation.close()
        return reuse.n, reuse.reason


def test_older_states_are_recognized_where_the_model_has_not_changed_since(kernels: Kernels, tmp_path: Path) -> None:
    older = Older(tmp_path, kernels)
    for _ in range(2):
        n, reason = older.reuse(older.runtime)
        assert n > 20
        assert reason == "none"
    assert older.told == []


@pytest.mark.parametrize("change", ["moved", "touched"])
def test_older_states_that_may_not_fit_are_read_again_and_told_once(
    kernels: Kernels, tmp_path: Path, change: str
) -> None:
    older = Older(tmp_path, kernels)
    path = older.runtime.path
    if change == "moved":
        path = path.rename(tmp_path / "moved.gguf")
    os.utime(path, (0, 0))  # changes can't be hidden by setting times back
    runtime = Runtime.load(path, kernels, EngineSettings())
    assert older.reuse(runtime) == (0, "state_dropped")
    assert len(older.told) == 1
    assert "reads the conversation again, once" in older.told[0]
    assert older.reuse(runtime)[0] == 0
    conversation = older.open()
    take_a_turn(conversation, runtime)
    conversation.close()
    n, reason = older.reuse(runtime)
    assert n > 20
    assert reason == "none"
    assert len(older.told) == 1
