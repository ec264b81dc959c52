"""The program ends, and another process goes on with what it left."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.slot.file.slot_file import SlotFile

ROOT = Path(__file__).parents[2]


def visit(words: str, *dropped: Path, arguments: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Run the program in a process of its own; return what the visit printed."""
    command = [sys.executable, "-m", "tests.app.visit", words, *map(str, dropped), "--", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_gemma3"])
def test_a_dropped_file_goes_on_in_a_new_process(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model, path = request.getfixturevalue(name), tmp_path / "story.slot"
    SlotFile.create(path).close()
    long = "Tell me about dormice. " * 10  # more than two of the windows
    first = visit(long, arguments=(model, path))
    assert [bar[0] for bar in first["bars"]] == ["cold"]
    assert first["bars"][0][2] > 200

    second = visit("Where do they sleep?", path)
    assert second["texts"][:2] == first["texts"]
    sources, cached, evaluated = zip(*second["bars"], strict=True)
    assert sources == ("cold", "restored")
    assert evaluated[1] < 60
    assert cached[1] + evaluated[1] > evaluated[0]

    third = visit("And what do they eat?", path)
    assert [bar[0] for bar in third["bars"]] == ["cold", "restored", "restored"]
    assert third["bars"][2][2] < 60
