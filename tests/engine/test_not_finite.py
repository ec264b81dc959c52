"""Models with weights that are not finite: a turn ends with a sentence, and nothing that was computed is kept."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import events
from engine.arrays import TokenIds
from engine.cli.client import Client
from engine.errors import DormouseError, NotFiniteError
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels, load_kernels
from engine.kernels.kv_types import KV_TYPES
from engine.memory import Memory
from engine.models import Model, load_model
from tests.families import ENGINE, SETTINGS
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import N_VOCAB, TOKENIZER, TinyModel

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS
NAMES = ["llama", "gemma3", "lfm2 with a sliding window", "qwen35", "mamba2 in one group", "rwkv7"]
IDS = np.random.default_rng(0).integers(5, N_VOCAB, 40).astype(np.int32)
UNUSED = ("nextn", "blk.4.", "rope_", "blk.0.time_mix_v")  # by the models above in the way that is tested here
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of NumPy's kernels


@pytest.fixture(scope="module", params=["numpy", None], ids=["numpy", "compiled"], name="kernels")
def _kernels(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Kernels]:
    kernels = load_kernels(request.param, n_threads=1, cache_folder=kernel_cache)
    yield kernels
    kernels.close()


def spoiled(model: TinyModel, tensor: str, value: float, row: int = 0) -> TinyModel:
    """Return the model with one value of a tensor in the middle of a row replaced."""
    values, kind = model.tensors[tensor]
    values = values.copy()
    rows = values.reshape(-1, values.shape[-1])
    rows[row % len(rows), values.shape[-1] // 2] = value
    model.tensors[tensor] = values, kind
    return model


@pytest.mark.parametrize("n_tokens", [1, 40])
@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_can_hide_that_it_is_not_a_number(name: str, n_tokens: int, kernels: Kernels, tmp_path: Path) -> None:
    kv_types = ["f16", "q8_0", "q4_0"] if name == "llama" else ["f16"]
    for tensor in MODELS[name]().tensors:
        if any(word in tensor for word in UNUSED) and name in ("qwen35", "llama", "rwkv7"):
            continue
        path = spoiled(MODELS[name](), tensor, np.nan, row=IDS[0]).write(tmp_path / "model.gguf")
        with open_gguf(path) as gguf:
            model = load_model(gguf, kernels).model
        for kv_type in kv_types:
            memory = model.new_memory(KV_TYPES[kv_type])
            for _ in range(3):  # the last of them with what was recorded, if anything could be
                assert is_noticed(model, memory, IDS[:n_tokens]), tensor
                memory.rewind(0)
            assert memory.n_tokens == 0


def is_noticed(model: Model, memory: Memory, token_ids: TokenIds) -> bool:
    try:
        model.logits(model.forward(token_ids, memory))
    except NotFiniteError:
        return True
    return False


@pytest.fixture(scope="module", name="client")
def _client() -> Iterator[Client]:
    client = Client(kernels=None, n_threads=1, warn=pytest.fail)
    yield client
    client.session.close()


def spoiled_llama(tensor: str, value: float) -> TinyModel:
    tokens = TOKENIZER["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    model = full_attention.MODELS["llama"]()
    assert "output.weight" in model.tensors
    return spoiled(model, tensor, value, row=tokens.index("z") if tensor == "token_embd.weight" else 0)


def stored(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.1.ffn_down.weight", "output.weight"])
def test_a_turn_ends_with_a_sentence_and_nothing_is_stored(
    tensor: str, value: float, client: Client, tmp_path: Path
) -> None:
    model = spoiled_llama(tensor, value).write(tmp_path / "model.gguf")
    client.wait(client.session.load_model(model, ENGINE))
    slot = tmp_path / "a.slot"
    job = client.session.open(slot)
    client.wait(job)
    conversation = job.conversation
    assert conversation is not None
    with pytest.raises(DormouseError, match="not numbers: its file may be damaged"):
        client.wait(client.session.send(conversation, "fizz", settings=SETTINGS))
    client.wait(client.session.close_conversation(conversation))
    counts = stored(slot)
    assert counts["message"] == 2
    assert (counts["rows"], counts["checkpoint"]) == (0, 0)


def test_a_message_after_it_is_answered_and_so_are_other_conversations(client: Client, tmp_path: Path) -> None:
    model = spoiled_llama("token_embd.weight", np.nan).write(tmp_path / "model.gguf")
    client.wait(client.session.load_model(model, ENGINE))
    said = []
    for texts in (["a hare"], ["fizz", "a hare"]):
        job = client.session.open(None)
        client.wait(job)
        assert job.conversation is not None
        *wrong, text = texts
        for bad in wrong:
            with pytest.raises(DormouseError, match="not numbers"):
                client.wait(client.session.send(job.conversation, bad, settings=SETTINGS))
        finished = answer(client, job.conversation, text, edits=bool(wrong))
        said.append((finished.token_ids, finished.logits_xxh3))
    assert said[0] == said[1]


def answer(client: Client, conversation: int, text: str, *, edits: bool) -> events.TurnFinished:
    """Send a message, or put it in the place of the first one."""
    if edits:
        job = client.session.edit(conversation, 1, text, settings=SETTINGS)
    else:
        job = client.session.send(conversation, text, settings=SETTINGS)
    event = client.wait(job)
    assert isinstance(event, events.TurnFinished)
    return event
