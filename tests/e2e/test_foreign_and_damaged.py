"""Slot files of other models, and damaged ones: the transcript stays, and wrong state is never used."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import events
from engine.cli.client import Client
from engine.errors import DormouseError
from engine.runtime import EngineSettings, Runtime
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.verify import verify
from tests.e2e.conftest import Chat, run_cli
from tests.gguf_copy import write_copy
from tests.strangers import change_payloads, substitute

GREEDY = ("--temperature", 0, "--max-tokens", 8)
SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=8)
TURNS = ["Who are you?", "What do mice eat?", "And hares? " * 29 + "And hares?"]


@pytest.fixture(scope="module", name="slept")
def _slept(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, chat: Chat) -> Path:
    """A slot file of a tiny model with three turns."""
    file = tmp_path_factory.mktemp("slots") / "slept.slot"
    chat(tiny_llama, *GREEDY, "--slot", file, say=TURNS)
    return file


def n_prompt(turn: dict[str, int]) -> int:
    return turn["prompt_n"] + turn["cache_n"]


def test_a_model_of_the_same_shape_with_other_weights_says_why_and_reads_again(
    tiny_llama: Path, slept: Path, tmp_path: Path, chat: Chat
) -> None:
    noise = np.random.default_rng(0)

    def tune(info: object, weights: np.ndarray) -> np.ndarray:
        return weights + 1e-4 * noise.standard_normal(weights.shape).astype(np.float32)

    tuned = write_copy(tiny_llama, tmp_path / "tuned.gguf", change=tune)
    file = Path(shutil.copy(slept, tmp_path / "copy.slot"))
    first, second = chat(tuned, *GREEDY, "--slot", file, say=["Go on.", "And on."])
    assert (first["reason"], first["source"], first["cache_n"]) == ("other_model", "cold", 0)
    assert (second["reason"], second["source"]) == ("none", "live")
    (back,) = chat(tiny_llama, *GREEDY, "--slot", file, "--edit", 4, "--prompt", "Once more.")
    assert (back["source"], back["reason"]) == ("restored", "none")
    assert back["cache_n"] >= n_prompt(first) - 40  # the first model's state is still there


def test_a_model_of_another_family_keeps_the_transcript(
    tiny_gemma3: Path, slept: Path, tmp_path: Path, chat: Chat
) -> None:
    file = Path(shutil.copy(slept, tmp_path / "copy.slot"))
    run = run_cli("chat", "--model", tiny_gemma3, *GREEDY, "--slot", file, "--prompt", "Go on.")
    assert run.status == 0
    assert "another model" in run.stderr
    summary = json.loads(run_cli("inspect", file, "--json").stdout)
    assert [model["architecture"] for model in summary["models"]] == ["llama", "gemma3"]
    (turn,) = chat(tiny_gemma3, *GREEDY, "--slot", file, "--regenerate")
    assert turn["prompt_n"] == 0


def test_another_kv_type_says_so(tiny_llama: Path, slept: Path, tmp_path: Path, chat: Chat) -> None:
    file = Path(shutil.copy(slept, tmp_path / "copy.slot"))
    (turn,) = chat(tiny_llama, *GREEDY, "--slot", file, "--kv-type", "f32", "--prompt", "Go on.")
    assert (turn["reason"], turn["cache_n"]) == ("other_kv_type", 0)


@pytest.fixture(scope="module", name="warnings")
def _warnings() -> list[str]:
    return []


@pytest.fixture(scope="module", name="loaded")
def _loaded(tiny_llama: Path, warnings: list[str]) -> Iterator[Client]:
    client = Client(kernels=None, n_threads=None, warn=warnings.append)
    client.wait(client.session.load_model(tiny_llama, EngineSettings()))
    yield client
    client.session.close()


def go_on(client: Client, file: Path) -> events.TurnFinished | str:
    """Open a file and take a turn; return it, or the sentence with which it was refused."""
    opening = None
    try:
        opening = client.session.open(file)
        opened = client.wait(opening)
        assert isinstance(opened, events.Opened)
        assert opening.conversation is not None
        turn = client.wait(client.session.send(opening.conversation, "Go on.", settings=SETTINGS))
        assert isinstance(turn, events.TurnFinished)
        whole = [m.text for m in opened.transcript.path() if m.role == "user" and not m.damaged]
        assert opened.damage or whole[:3] == TURNS
        assert set(whole) <= {*TURNS, "Go on."}
    except DormouseError as error:
        return str(error)
    else:
        return turn
    finally:
        if opening and opening.conversation:
            client.wait(client.session.close_conversation(opening.conversation))


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 1 << at % 8


def zero(data: bytearray, at: int) -> None:
    data[at : at + 5000] = bytes(len(data[at : at + 5000]))


def cut(data: bytearray, at: int) -> None:
    del data[at:]


@pytest.mark.parametrize("damage", [flip, zero, cut])
def test_damage_anywhere_gives_a_sentence_or_the_right_reply(
    loaded: Client, slept: Path, tmp_path: Path, damage: Callable[[bytearray, int], None], warnings: list[str]
) -> None:
    whole = go_on(loaded, Path(shutil.copy(slept, tmp_path / "whole.slot")))
    assert isinstance(whole, events.TurnFinished)
    assert whole.receipt.source == "restored"
    where, outcomes = random.Random(damage.__name__), set[str]()
    for i in range(12):
        data = bytearray(slept.read_bytes())
        damage(data, where.randrange(len(data)))
        file = tmp_path / f"damaged-{i}.slot"
        file.write_bytes(data)
        outcome = go_on(loaded, file)
        if isinstance(outcome, str):
            assert outcome.count("\n") == 0
            outcomes.add("refused")
        else:
            # the state was right or was put aside: the model says the same either way
            assert outcome.token_ids == whole.token_ids
            outcomes.add(outcome.receipt.reason)
            kept = file.with_name(f"{file.name}.damaged")
            # what the turn touched is healed, and told
            assert outcome.receipt.reason == "none" or kept.exists()
            assert not kept.exists() or verify(file) == []
            again = go_on(loaded, file)
            assert isinstance(again, events.TurnFinished)
            assert (again.receipt.source, again.receipt.reason) == ("restored", "none")
            assert again.receipt.prompt_n < 40
    assert outcomes <= {"refused", "damaged", "none"}
    assert all(" is kept as " in warning for warning in warnings)


MANNERS: dict[str, Callable[[Path, Runtime], None]] = {
    "another text": lambda path, runtime: substitute(path, [runtime], lambda ids: np.roll(ids, 1)),
    "random bytes": lambda path, _: change_payloads(path, rows=lambda _, data: random.Random(0).randbytes(len(data))),
    "small random numbers": lambda path, _: change_payloads(path, rows=lambda _, data: _small_numbers(len(data))),
    "infinity": lambda path, _: change_payloads(path, rows=lambda _, data: data[:-2] + b"\x00\x7c"),
    "NaN": lambda path, _: change_payloads(path, rows=lambda _, data: data[:-2] + b"\x01\xfc"),
}


def _small_numbers(nbytes: int) -> bytes:
    return np.random.default_rng(0).standard_normal(nbytes // 2).astype(np.float16).tobytes()


@pytest.mark.parametrize("manner", MANNERS)
def test_state_that_nobody_computed_of_the_text_changes_no_answer(
    loaded: Client, slept: Path, tmp_path: Path, manner: str, warnings: list[str]
) -> None:
    whole = go_on(loaded, Path(shutil.copy(slept, tmp_path / "whole.slot")))
    assert isinstance(whole, events.TurnFinished)
    file = Path(shutil.copy(slept, tmp_path / "received.slot"))
    assert loaded.session._runtime is not None
    MANNERS[manner](file, loaded.session._runtime)
    assert verify(file) == []
    n_told = len(warnings)
    outcome = go_on(loaded, file)
    assert isinstance(outcome, events.TurnFinished)
    assert outcome.token_ids == whole.token_ids
    assert (outcome.receipt.reason, outcome.receipt.cache_n) == ("damaged", 0)
    if manner in ("another text", "small random numbers"):
        (sentence,) = warnings[n_told:]
        assert "is not that of its text: it was put aside" in sentence
        del warnings[n_told:]
    again = go_on(loaded, file)
    assert isinstance(again, events.TurnFinished)
    assert (again.receipt.source, again.receipt.reason) == ("restored", "none")


def test_what_was_live_stays_live_when_a_damaged_file_is_opened(loaded: Client, slept: Path, tmp_path: Path) -> None:
    live = loaded.session.open(None)
    loaded.wait(live)
    assert live.conversation is not None
    loaded.wait(loaded.session.send(live.conversation, TURNS[0], settings=SETTINGS))
    foreign = tmp_path / "foreign.slot"
    foreign.write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert isinstance(go_on(loaded, foreign), str)
    turn = loaded.wait(loaded.session.send(live.conversation, TURNS[1], settings=SETTINGS))
    assert isinstance(turn, events.TurnFinished)
    assert (turn.receipt.source, turn.receipt.reason) == ("live", "none")
    loaded.session.close_conversation(live.conversation)
