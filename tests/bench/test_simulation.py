"""Long conversations under two policies, ours and llama-server's, counted in tokens."""

import json

import pytest

from bench import simulate
from bench.llama_server_slot import ServerSettings, ServerSlot
from bench.simulate import SERVER_OPTIONS, series
from bench.simulation import MEMORIES, SimulatedMemory
from engine.cli import main


def test_the_simulated_server_does_what_llama_server_was_seen_to_do() -> None:
    # Gemma, --ctx-checkpoints 4, a step of 200, n_batch 256, n_ubatch 64
    slot = ServerSlot(ServerSettings(4, 200, n_swa=512, n_batch=256, n_ubatch=64))
    starts, seen = [1], []
    for n_common, length, start in ((0, 724, 1), (727, 1058, 735), (1061, 1132, 1069), (1135, 1206, 1143)):
        starts += [start] if start > 1 else []
        slot.prompt(n_common, length, starts)
        slot.generate(3)
        seen.append([checkpoint.n_tokens for checkpoint in slot.checkpoints])
    assert seen == [[1, 656, 720], [656, 735, 990, 1054], [990, 1064, 1069, 1128], [990, 1138, 1143, 1202]]


@pytest.mark.parametrize("options", SERVER_OPTIONS)
@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: memory.name)
def test_four_times_less_is_read_again_after_edits_than_by_llama_server(
    memory: SimulatedMemory, options: tuple[int, int]
) -> None:
    comparisons = list(series(memory, *options, seeds=1))
    assert 4 * sum(c.ours["edit"] for c in comparisons) <= sum(c.theirs["edit"] for c in comparisons)
    for c in comparisons:
        assert all(c.ours[action] <= c.theirs[action] for action in c.ours)


def test_the_simulation_can_be_run_by_anyone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "LENGTHS", (1000, 3000))
    assert main(["simulate-retention", "--seeds", "1", "--json"]) == 0
    comparisons = json.loads(capsys.readouterr().out)
    assert [c["n_tokens"] for c in comparisons] == [1000, 3000] * 4
    assert main(["simulate-retention", "--seeds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if " tokens " in line and "/" in line]) == len(comparisons)
