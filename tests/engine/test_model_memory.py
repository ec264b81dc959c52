"""A model that another one took the place of is gone at once, and its file: nobody waits for a garbage collection."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli.client import Client
from engine.errors import DormouseError
from engine.kernels.team import ThreadTeam
from tests.families import ENGINE, Chat, begin
from tests.models import full_attention, recurrent, windowed

MODELS = {
    "full attention": full_attention.llama,
    "sliding window": windowed.gemma3,
    "recurrent": recurrent.mamba2,
    "hybrid": recurrent.lfm2,
}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("kernels", ["numpy", None])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_gone_when_another_is_loaded(name: str, kernels: str | None, n_threads: int, tmp_path: Path) -> None:
    first = MODELS[name]().write(tmp_path / "first.gguf")
    second = full_attention.qwen2().write(tmp_path / "second.gguf")
    client = Client(kernels=kernels, n_threads=n_threads, warn=pytest.fail)
    session = client.session
    client.wait(session.load_model(first, ENGINE))
    chats = [Chat(client, None), Chat(client, tmp_path / "a.slot")]
    for chat in chats:
        begin(chat)
    assert session._runtime is not None
    model, runtime = weakref.ref(session._runtime.model), weakref.ref(session._runtime)
    client.wait(session.load_model(second, ENGINE))
    assert model() is None
    assert runtime() is None
    for chat in chats:
        chat.close()
    session.close()


def test_a_team_holds_on_to_no_work() -> None:
    class Payload:
        def __call__(self, index: int) -> None:
            if index == 3:
                raise DormouseError("no")

    team = ThreadTeam(2)
    payload = Payload()
    gone = weakref.ref(payload)
    with pytest.raises(DormouseError) as raised:
        team.run(8, payload)
    del payload, raised
    team.run(2, lambda index: None)
    assert gone() is None
    team.close()
