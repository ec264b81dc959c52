"""The promise: a conversation that slept in its file goes on as if it had never been closed.

Each step after the sleep is a new process. What it evaluates and what it says is compared with a slot that did the
same without a break.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.formats.gguf import open_gguf
from engine.kernels.choice import runnable
from engine.tokenizer.tokenizer import load_tokenizer
from tests.e2e.conftest import Chat, LiveChat, Turn

TEXT = (Path(__file__).parents[1] / "data" / "tea-party.txt").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if line]
# a user turn is one line; the story is long enough for three of Gemma's windows
STORY = [" ".join(LINES[start::4]) for start in range(4)]
TURNS = [STORY[0], STORY[1] + " Go on.", STORY[2], STORY[3], f"{STORY[1]} Who spoke of butter?", "And who was asleep?"]
NEXT = "What is the riddle about, and does anybody know the answer to it?"
EDITED = STORY[1] + " Stop here."
GREEDY = ("--temperature", 0)
SHORT, LONG = 8, 60  # tokens of a reply


@dataclass(frozen=True)
class Lives:
    """The same conversation twice: in a slot that is never closed, and asleep in a file after six turns."""

    model: Path
    live: list[Turn]  # the six turns, then the next
    regenerated: Turn  # the sixth reply again, before the next turn
    edited: Turn  # the second message edited
    back: Turn  # and edited back
    asleep: list[Turn]  # the six turns
    file: Path


@pytest.fixture(scope="module", params=["smollm2", "gemma3"], name="lives")
def _lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, chat: Chat) -> Lives:
    model, file = request.getfixturevalue(request.param), tmp_path_factory.mktemp("slots") / "six.slot"
    asleep = chat(model, *GREEDY, "--max-tokens", SHORT, "--slot", file, say=TURNS)
    with LiveChat(model) as live:
        turns = [live.send(text, max_tokens=SHORT) for text in TURNS]
        regenerated = live.regenerate(max_tokens=SHORT)
        turns.append(live.send(NEXT, max_tokens=LONG))
        edited = live.edit(2, EDITED, max_tokens=LONG)
        back = live.edit(2, TURNS[1], max_tokens=SHORT)
    return Lives(model, turns, regenerated, edited, back, asleep, file)


@pytest.fixture(name="file")
def _file(lives: Lives, tmp_path: Path) -> Path:
    """A copy of the file that slept."""
    return Path(shutil.copy(lives.file, tmp_path / "copy.slot"))


def test_until_it_slept_both_said_the_same(lives: Lives) -> None:
    assert [turn["logits_xxh3"] for turn in lives.asleep] == [turn["logits_xxh3"] for turn in lives.live[:6]]
    assert [turn["token_ids"] for turn in lives.asleep] == [turn["token_ids"] for turn in lives.live[:6]]


def test_the_conversation_is_longer_than_three_windows(lives: Lives) -> None:
    last = lives.asleep[-1]
    assert last["cache_n"] + last["prompt_n"] + last["predicted_n"] > 1600


def test_the_next_turn_evaluates_only_its_own_tokens_and_says_the_same(lives: Lives, file: Path, chat: Chat) -> None:
    (woken,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--prompt", NEXT)
    live = lives.live[6]
    assert woken["token_ids"] == live["token_ids"]
    assert woken["logits_xxh3"] == live["logits_xxh3"]
    assert (woken["prompt_n"], woken["cache_n"]) == (live["prompt_n"], live["cache_n"])
    assert (woken["source"], woken["reason"], live["source"]) == ("restored", "none", "live")
    with open_gguf(lives.model) as gguf:
        tokenizer = load_tokenizer(gguf)
    markers = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    own = len(tokenizer.encode(NEXT, parse_special=False))
    own += sum(len(tokenizer.encode(marker, parse_special=True)) for marker in markers)
    assert woken["prompt_n"] <= own + 2


def test_regenerating_after_the_restore_evaluates_nothing(lives: Lives, file: Path, chat: Chat) -> None:
    (again,) = chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--regenerate")
    assert (again["prompt_n"], again["source"], again["reason"]) == (0, "restored", "none")
    assert again["token_ids"] == lives.asleep[-1]["token_ids"]
    assert again["logits_xxh3"] == lives.asleep[-1]["logits_xxh3"] == lives.regenerated["logits_xxh3"]
    assert lives.regenerated["prompt_n"] == 0


def test_editing_the_second_message_evaluates_what_the_live_slot_evaluates(
    lives: Lives, file: Path, chat: Chat
) -> None:
    (edited,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--edit", 2, "--prompt", EDITED)
    live = lives.edited
    assert edited["token_ids"] == live["token_ids"]
    assert (edited["prompt_n"], edited["cache_n"]) == (live["prompt_n"], live["cache_n"])
    first, second = lives.asleep[0], lives.asleep[1]
    at_worst = first["prompt_n"] + first["predicted_n"] - 1  # where the second message begins
    assert edited["cache_n"] >= at_worst
    if "gemma" not in str(lives.model):
        # the messages differ at their ends: all but some tokens of the second prompt are common
        assert edited["cache_n"] > second["cache_n"] + second["prompt_n"] - 20

    (back,) = chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--edit", 2, "--prompt", TURNS[1])
    assert back["prompt_n"] == lives.back["prompt_n"] == 0
    assert back["token_ids"] == second["token_ids"]


def test_a_branch_is_gone_back_to_and_on_from_without_evaluating_it(lives: Lives, file: Path, chat: Chat) -> None:
    chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--edit", 2, "--prompt", EDITED)
    tip = lives.asleep[-1]["message_id"]
    (on,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--select", tip, "--prompt", NEXT)
    assert (on["prompt_n"], on["token_ids"]) == (lives.live[6]["prompt_n"], lives.live[6]["token_ids"])


def test_cache_n_grows_over_many_turns_after_the_restore(lives: Lives, file: Path, chat: Chat) -> None:
    turns = chat(lives.model, *GREEDY, "--max-tokens", 5, "--slot", file, say=[f"Say {i}." for i in range(6)])
    cached = [turn["cache_n"] for turn in turns]
    assert cached == sorted(cached)
    assert cached[0] > 1500
    assert [turn["source"] for turn in turns] == ["restored"] + ["live"] * 5
    assert max(turn["prompt_n"] for turn in turns) < 40


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_seeded_sampling_goes_on_identically(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, chat: Chat
) -> None:
    model, file = request.getfixturevalue(name), tmp_path / "seeded.slot"
    seeded = ("--temperature", 1.5, "--seed", 7, "--max-tokens", 20)
    live = chat(model, *seeded, say=[STORY[0], "Go on.", "And then?", "/regenerate"])
    chat(model, *seeded, "--slot", file, say=[STORY[0], "Go on."])
    (woken,) = chat(model, *seeded, "--slot", file, "--prompt", "And then?")
    assert woken["token_ids"] == live[2]["token_ids"]
    assert woken["logits_xxh3"] == live[2]["logits_xxh3"]
    (again,) = chat(model, *seeded, "--slot", file, "--regenerate")
    assert again["token_ids"] == live[3]["token_ids"] != live[2]["token_ids"]
    assert again["prompt_n"] == live[3]["prompt_n"] == 0


def test_the_number_of_threads_changes_nothing(smollm2: Path, tmp_path: Path, chat: Chat) -> None:
    file = tmp_path / "threads.slot"
    one = chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 1, say=[STORY[0], NEXT])
    chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 3, "--slot", file, "--prompt", STORY[0])
    (woken,) = chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 2, "--slot", file, "--prompt", NEXT)
    assert woken["logits_xxh3"] == one[1]["logits_xxh3"]
    assert woken["token_ids"] == one[1]["token_ids"]


@pytest.mark.parametrize("kernels", runnable())
def test_other_kernels_evaluate_as_many_tokens(lives: Lives, file: Path, chat: Chat, kernels: str) -> None:
    options = ("--slot", file, "--kernels", kernels, *GREEDY, "--max-tokens", SHORT)
    (went_on,) = chat(lives.model, *options, "--prompt", NEXT)
    assert (went_on["prompt_n"], went_on["cache_n"]) == (lives.live[-1]["prompt_n"], lives.live[-1]["cache_n"])
    (edited,) = chat(lives.model, *options, "--edit", 2, "--prompt", EDITED)
    assert (edited["prompt_n"], edited["cache_n"]) == (lives.edited["prompt_n"], lives.edited["cache_n"])
