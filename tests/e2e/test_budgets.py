"""The budgets of memory and disk, and the log that tells what became of the state."""

import json
from pathlib import Path

import pytest

from engine import events
from engine.cli.client import Client
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.slot_file import SlotFile
from tests.e2e.conftest import Chat, run_cli

STORY = (Path(__file__).parents[1] / "data" / "tea-party.txt").read_text(encoding="utf-8")
TURNS = [" ".join(STORY.split()[start : start + 100]) for start in range(0, 600, 100)]
SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=4)


@pytest.mark.parametrize("memory_budget", [0, 1 << 30])
def test_conversations_used_long_ago_fall_asleep(tiny_llama: Path, tmp_path: Path, memory_budget: int) -> None:
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    client.wait(client.session.load_model(tiny_llama, EngineSettings(memory_budget=memory_budget)))
    jobs = [client.session.open(path) for path in (tmp_path / "a.slot", None, tmp_path / "c.slot")]
    for text in TURNS[:2]:
        for number, job in enumerate(jobs):  # who says the same would take over what the others have
            assert job.conversation is not None
            turn = client.wait(client.session.send(job.conversation, f"{number}. {text}", settings=SETTINGS))
            assert isinstance(turn, events.TurnFinished)
            assert text != TURNS[1] or turn.receipt.prompt_n < len(text) + 50
            assert text != TURNS[1] or turn.receipt.source == ("live" if memory_budget else "restored")
    client.session.close()
    with SlotFile.open(tmp_path / "a.slot", read_only=True) as file:
        asleep = [entry.detail for entry in file.log() if entry.event == "sleep"]
    assert [entry["reason"] for entry in asleep] == [] if memory_budget else ["memory_budget"]


def test_a_file_within_its_budget_still_wakes(tiny_gemma3: Path, tmp_path: Path, chat: Chat) -> None:
    file = tmp_path / "small.slot"
    options = ("--temperature", 0, "--max-tokens", 4, "--slot", file)
    chat(tiny_gemma3, *options, "--disk-budget", 1, say=TURNS)
    assert file.stat().st_size < 2 << 20
    (woken,) = chat(tiny_gemma3, *options, "--prompt", "Go on.")
    assert woken["prompt_n"] < 40
    assert (woken["source"], woken["reason"]) == ("restored", "none")

    assert run_cli("verify", file).status == 0
    entries = [json.loads(line) for line in run_cli("log", file, "--json").stdout.splitlines()]
    assert {entry["event"] for entry in entries} == {"checkpoint", "evict", "restore"}
    assert all({"created", "n_tokens", "nbytes", "reason"} <= entry.keys() for entry in entries)
    lines = run_cli("log", file).stdout.splitlines()
    assert len(lines) == len(entries)
    assert "disk_budget" in "".join(lines)


def test_a_log_of_what_is_no_slot_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary")
    run = run_cli("log", tmp_path / "notes.txt")
    assert run.status == 1
    assert "not a slot file" in run.stderr
