"""A conversation with a tiny model of every architecture: awake all the time, and asleep in a file in between.

What turns after the sleep evaluate and say, in another process, is compared with what the same turns do where nothing
ever slept.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from engine.cli.client import Client
from tests.families import ENGINE, NEXT, TEN, TURNS, Chat, begin, go_on, wake_and_go_on
from tests.models import full_attention, recurrent, windowed

MODELS = full_attention.MODELS | windowed.MODELS | recurrent.MODELS


@pytest.fixture(scope="module", name="client")
def _client() -> Iterator[Client]:
    client = Client(kernels=None, n_threads=1, warn=pytest.fail)
    yield client
    client.session.close()


@pytest.fixture(scope="module", name="elsewhere")
def _elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process that has seen none of the conversations."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", MODELS)
def test_what_slept_goes_on_as_if_it_had_not(
    name: str, client: Client, elsewhere: ProcessPoolExecutor, tmp_path: Path
) -> None:
    model, slot = MODELS[name]().write(tmp_path / "model.gguf"), tmp_path / "a.slot"
    client.wait(client.session.load_model(model, ENGINE))
    awake, asleep = Chat(client, None), Chat(client, slot)
    live = begin(awake)
    assert begin(asleep) == live
    asleep.close()
    live |= go_on(awake)
    awake.close()
    woken = elsewhere.submit(wake_and_go_on, model, slot).result()
    assert woken == {text: live[text] for text in woken}

    assert live["regenerated"].prompt_n == 0
    assert live["regenerated"].token_ids == live[TURNS[-1]].token_ids
    for text, next_text in (("next", NEXT), ("back", "and then")):
        n_template = len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        assert live[text].prompt_n < len(next_text) + n_template
    # an edit re-reads nothing of the turns before the edited one
    first = live[TURNS[0]]
    assert live["edited early"].cache_n >= first.prompt_n + len(first.token_ids) - 1
    assert live["edited late"].cache_n > live["edited early"].cache_n
    last = live["back"]
    for turn in TEN:
        # all of the turn before but its last token, which no turn has evaluated yet
        assert live[turn].cache_n >= last.cache_n + last.prompt_n + len(last.token_ids) - 1
        last = live[turn]
