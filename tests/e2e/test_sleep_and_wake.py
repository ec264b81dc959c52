"""The promise: a conversation that slept in its file goes on as if it had never been closed.

Each step after the sleep is a new process. What it evaluates and what it says is compared with a slot that did the
same without a break. What the turns after it cost is told of the real models; what other ways to go on cost, and that
they end alike, of tiny ones, which no test may wait for.
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
NEXT = "What is the riddle about, and does anybody know the answer to it?"
GREEDY = ("--temperature", 0)
SHORT, LONG = 8, 30  # tokens of a reply
WINDOWS = {"gemma3": 512, "tiny_gemma3": 24}
LENGTHS = {"gemma3": 10_000, "smollm2": 400, "tiny_llama": 60, "tiny_gemma3": 60}  # of parts of the story
REAL, TINY = ("smollm2", "gemma3"), ("tiny_llama", "tiny_gemma3")
END, START = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def turns_of(name: str) -> tuple[list[str], str]:
    """Return what is said to a model, and the second turn edited."""
    story = [part[: LENGTHS[name]].strip() for part in STORY]
    second = story[1]
    turns = [story[0], f"{second} Go on.", *story[2:], f"{second} Who spoke of butter?", "And who was asleep?"]
    return turns, f"{second} Stop here."


@dataclass(frozen=True)
class Lives:
    """The same conversation twice: in a slot that is never closed, and asleep in a file after six turns."""

    model: Path
    turns: list[str]
    edit: str
    window: int
    live: list[Turn]  # the six turns, then the next
    regenerated: Turn  # the sixth reply again, before the next turn
    edited: Turn  # the second message edited
    back: Turn  # and edited back
    asleep: list[Turn]  # the six turns
    file: Path


@pytest.fixture(scope="module", params=[*REAL, *TINY], name="lives")
def _lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, chat: Chat) -> Lives:
    name = request.param
    model, file = request.getfixturevalue(name), tmp_path_factory.mktemp("slots") / "six.slot"
    turns, edit = turns_of(name)
    asleep = chat(model, *GREEDY, "--max-tokens", SHORT, "--slot", file, say=turns)
    with LiveChat(model) as live:
        said = [live.send(text, max_tokens=SHORT) for text in turns]
        regenerated = live.regenerate(max_tokens=SHORT)
        said.append(live.send(NEXT, max_tokens=LONG))
        edited = live.edit(2, edit, max_tokens=LONG)
        back = live.edit(2, turns[1], max_tokens=SHORT)
    return Lives(model, turns, edit, WINDOWS.get(name, 0), said, regenerated, edited, back, asleep, file)


@pytest.fixture(name="file")
def _file(lives: Lives, tmp_path: Path) -> Path:
    """A copy of the file that slept."""
    return Path(shutil.copy(lives.file, tmp_path / "copy.slot"))


def test_until_it_slept_both_said_the_same(lives: Lives) -> None:
    assert [turn["logits_xxh3"] for turn in lives.asleep] == [turn["logits_xxh3"] for turn in lives.live[:6]]
    assert [turn["token_ids"] for turn in lives.asleep] == [turn["token_ids"] for turn in lives.live[:6]]


def test_the_conversation_is_longer_than_three_windows(lives: Lives) -> None:
    last = lives.asleep[-1]
    assert last["cache_n"] + last["prompt_n"] + last["predicted_n"] > 3 * lives.window


def n_tokens(model: Path, *texts: str) -> int:
    """Return how many tokens texts and templates are."""
    with open_gguf(model) as gguf:
        tokenizer = load_tokenizer(gguf)
    return sum(len(tokenizer.encode(text, parse_special=True)) for text in texts)


def test_the_next_turn_evaluates_only_its_own_tokens_and_says_the_same(lives: Lives, file: Path, chat: Chat) -> None:
    (woken,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--prompt", NEXT)
    live = lives.live[6]
    assert woken["token_ids"] == live["token_ids"]
    assert woken["logits_xxh3"] == live["logits_xxh3"]
    assert (woken["prompt_n"], woken["cache_n"]) == (live["prompt_n"], live["cache_n"])
    assert (woken["source"], woken["reason"], live["source"]) == ("restored", "none", "live")
    assert woken["prompt_n"] <= n_tokens(lives.model, NEXT, END, START) + 2


def test_regenerating_after_the_restore_evaluates_nothing(lives: Lives, file: Path, chat: Chat) -> None:
    (again,) = chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--regenerate")
    assert (again["prompt_n"], again["source"], again["reason"]) == (0, "restored", "none")
    assert again["token_ids"] == lives.asleep[-1]["token_ids"]
    assert again["logits_xxh3"] == lives.asleep[-1]["logits_xxh3"] == lives.regenerated["logits_xxh3"]
    assert lives.regenerated["prompt_n"] == 0


def test_editing_the_second_message_evaluates_what_the_live_slot_evaluates(
    lives: Lives, file: Path, chat: Chat
) -> None:
    (edited,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--edit", 2, "--prompt", lives.edit)
    live = lives.edited
    assert edited["token_ids"] == live["token_ids"]
    assert (edited["prompt_n"], edited["cache_n"]) == (live["prompt_n"], live["cache_n"])
    first, second = lives.asleep[0], lives.asleep[1]
    at_worst = first["prompt_n"] + first["predicted_n"] - 1  # where the second message begins
    assert edited["cache_n"] >= at_worst
    if "gemma" not in str(lives.model):
        # the messages differ at their ends: all but some tokens of the second prompt are common
        its_own = n_tokens(lives.model, " Go on.", START)
        assert edited["cache_n"] >= second["cache_n"] + second["prompt_n"] - its_own - 1

    (back,) = chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--edit", 2, "--prompt", lives.turns[1])
    assert back["prompt_n"] == lives.back["prompt_n"] == 0
    assert back["token_ids"] == second["token_ids"]


@pytest.mark.parametrize("lives", TINY, indirect=True)
def test_a_branch_is_gone_back_to_and_on_from_without_evaluating_it(lives: Lives, file: Path, chat: Chat) -> None:
    chat(lives.model, *GREEDY, "--max-tokens", SHORT, "--slot", file, "--edit", 2, "--prompt", lives.edit)
    tip = lives.asleep[-1]["message_id"]
    (on,) = chat(lives.model, *GREEDY, "--max-tokens", LONG, "--slot", file, "--select", tip, "--prompt", NEXT)
    assert (on["prompt_n"], on["token_ids"]) == (lives.live[6]["prompt_n"], lives.live[6]["token_ids"])


@pytest.mark.parametrize("lives", TINY, indirect=True)
def test_cache_n_grows_over_many_turns_after_the_restore(lives: Lives, file: Path, chat: Chat) -> None:
    turns = chat(lives.model, *GREEDY, "--max-tokens", 5, "--slot", file, say=[f"Say {i}." for i in range(6)])
    cached = [turn["cache_n"] for turn in turns]
    assert cached == sorted(cached)
    assert cached[0] > lives.asleep[-1]["cache_n"] > 3 * lives.window
    assert [turn["source"] for turn in turns] == ["restored"] + ["live"] * 5
    assert max(turn["prompt_n"] for turn in turns) < 40


@pytest.mark.parametrize("name", TINY)
def test_seeded_sampling_goes_on_identically(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, chat: Chat
) -> None:
    model, file = request.getfixturevalue(name), tmp_path / "seeded.slot"
    seeded = ("--temperature", 1.5, "--top-k", 10, "--seed", 7, "--max-tokens", 20)
    live = chat(model, *seeded, say=[STORY[0], "Go on.", "And then?", "/regenerate"])
    chat(model, *seeded, "--slot", file, say=[STORY[0], "Go on."])
    (woken,) = chat(model, *seeded, "--slot", file, "--prompt", "And then?")
    assert woken["token_ids"] == live[2]["token_ids"]
    assert woken["logits_xxh3"] == live[2]["logits_xxh3"]
    (again,) = chat(model, *seeded, "--slot", file, "--regenerate")
    assert again["token_ids"] == live[3]["token_ids"] != live[2]["token_ids"]
    assert again["prompt_n"] == live[3]["prompt_n"] == 0


def test_the_number_of_threads_changes_nothing(smollm2: Path, tmp_path: Path, chat: Chat) -> None:
    file, story = tmp_path / "threads.slot", STORY[0][:400]
    one = chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 1, say=[story, NEXT])
    chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 3, "--slot", file, "--prompt", story)
    (woken,) = chat(smollm2, *GREEDY, "--max-tokens", SHORT, "--threads", 2, "--slot", file, "--prompt", NEXT)
    assert woken["logits_xxh3"] == one[1]["logits_xxh3"]
    assert woken["token_ids"] == one[1]["token_ids"]


@pytest.mark.parametrize("lives", TINY, indirect=True)
@pytest.mark.parametrize("kernels", runnable())
def test_other_kernels_evaluate_as_many_tokens(lives: Lives, file: Path, chat: Chat, kernels: str) -> None:
    options = ("--slot", file, "--kernels", kernels, *GREEDY, "--max-tokens", SHORT)
    (went_on,) = chat(lives.model, *options, "--prompt", NEXT)
    assert (went_on["prompt_n"], went_on["cache_n"]) == (lives.live[-1]["prompt_n"], lives.live[-1]["cache_n"])
    (edited,) = chat(lives.model, *options, "--edit", 2, "--prompt", lives.edit)
    assert (edited["prompt_n"], edited["cache_n"]) == (lives.edited["prompt_n"], lives.edited["cache_n"])
