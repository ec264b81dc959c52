"""What can't be done gets its sentence, in one line, with status 1, and loses nothing."""

import json
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from engine import events
from engine.cli import main
from engine.cli.client import Client
from engine.errors import DormouseError
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.slot_file import SlotFile
from tests.e2e.conftest import Run, run_cli

GREEDY = ("--temperature", 0, "--max-tokens", 8)


def refused(run: Run) -> str:
    """Return the one sentence of a failure."""
    assert run.status == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("dormouse-cli: ")
    return line


def users(file: Path) -> list[str]:
    with SlotFile.open(file, read_only=True) as opened:
        return [message.text for message in opened.messages() if message.role == "user"]


def test_a_message_longer_than_the_context_is_refused_and_not_stored(tiny_llama: Path, tmp_path: Path) -> None:
    file, long = tmp_path / "a.slot", "word " * 300
    sentence = refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--n-ctx", 200, "--prompt", long))
    assert "200" in sentence
    assert "at least 1,2" in sentence  # a token for each letter
    assert not file.exists()
    options = ("--model", tiny_llama, "--slot", file, "--n-ctx", 200, *GREEDY)
    assert run_cli("chat", *options, "--prompt", "Hi.").status == 0
    assert "200" in refused(run_cli("chat", *options, "--edit", 1, "--prompt", long))
    assert "200" in refused(run_cli("chat", *options, "--prompt", long))
    assert users(file) == ["Hi."]
    assert run_cli("chat", *options, "--prompt", "Ho.").status == 0
    assert users(file) == ["Hi.", "Ho."]
    assert run_cli("verify", file).status == 0


def test_a_reply_that_reaches_the_end_of_the_context_ends_with_length(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.slot"
    options = ("--model", tiny_llama, "--slot", file, "--n-ctx", 80, "--temperature", 0, "--json")
    (turn,) = run_cli("chat", *options, "--prompt", "Count from one to a hundred.").turns
    assert turn["finish_reason"] == "length"
    assert turn["prompt_n"] + turn["predicted_n"] == 80
    sentence = refused(run_cli("chat", *options, "--prompt", "Go on."))
    assert "80" in sentence
    assert len(users(file)) == 1
    (turn,) = run_cli("chat", *options, "--n-ctx", 200, "--max-tokens", 4, "--prompt", "Go on.").turns
    assert turn["reason"] == "none"


@pytest.mark.parametrize("is_loaded", [True, False])
def test_what_does_not_fit_is_given_back_also_where_that_shows_late(
    tiny_llama: Path, tmp_path: Path, is_loaded: bool
) -> None:
    """With a model, nothing of it reaches the file; without one yet, it does, and is taken back."""
    client = Client(kernels=None, n_threads=1, warn=pytest.fail)
    session, file, long = client.session, tmp_path / "a.slot", "word " * 300
    opening = session.open(file)
    client.wait(opening)
    assert opening.conversation is not None
    loading = session.load_model(tiny_llama, EngineSettings(n_ctx=200))
    if is_loaded:
        client.wait(loading)
    seen: list[events.Event] = []
    job = session.send(opening.conversation, long, system="Be brief.")
    for event in client._events_of(job):
        seen.append(event)
        if isinstance(event, events.Outcome):
            break
    client.wait(loading) if not is_loaded else None
    last = seen[-1]
    assert isinstance(last, events.Refused)
    assert "1,2" in last.text
    if is_loaded:
        assert len(seen) == 1
    else:
        assert last.words == long
        assert last.transcript is not None
        assert last.transcript.path() == []
    done = client.wait(session.send(opening.conversation, "Hi.", settings=TurnSettings(max_tokens=3)))
    assert isinstance(done, events.TurnFinished)
    session.close()
    assert users(file) == ["Hi."]
    with SlotFile.open(file, read_only=True) as opened:
        assert [message.role for message in opened.messages()] == ["user", "assistant"]


def test_a_system_message_that_comes_too_late_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    options = ("--model", tiny_llama, "--slot", tmp_path / "a.slot", *GREEDY, "--system", "Be brief.")
    for prompt in ("Hi.", "Ho."):  # the same one may be said again
        assert run_cli("chat", *options, "--prompt", prompt).status == 0
    assert "begun already" in refused(run_cli("chat", *options, "--system", "Be verbose.", "--prompt", "Hm."))
    assert users(tmp_path / "a.slot") == ["Hi.", "Ho."]


def test_no_folder_is_made_for_a_slot_file(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "not" / "there" / "a.slot"
    assert "does not exist" in refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--prompt", "Hi."))
    assert not (tmp_path / "not").exists()


def test_an_empty_message_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.slot"
    assert "empty" in refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--prompt", " \n"))
    assert not file.exists()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    gone = tmp_path / "gone.gguf"
    assert "gone.gguf" in refused(run_cli("chat", "--model", gone, "--prompt", "Hi."))


def test_a_model_that_vanishes_while_it_is_used_goes_on_from_memory(tiny_llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_llama.read_bytes())
    client = Client(kernels=None, n_threads=None, warn=pytest.fail)
    client.wait(client.session.load_model(copy, EngineSettings()))
    copy.unlink()
    opening = client.session.open(None)
    assert opening.conversation is not None
    settings = TurnSettings(SamplingParameters(temperature=0), max_tokens=3)
    turn = client.wait(client.session.send(opening.conversation, "Hi.", settings=settings))
    assert isinstance(turn, events.TurnFinished)
    with pytest.raises(DormouseError, match=r"copy\.gguf"):
        client.wait(client.session.load_model(copy))
    turn = client.wait(client.session.send(opening.conversation, "Still there?", settings=settings))
    assert isinstance(turn, events.TurnFinished)
    client.session.close()


@pytest.mark.parametrize("place", ["/proc/a.slot", "/dev/null/a.slot"])
def test_a_folder_that_cannot_be_written(tiny_llama: Path, place: str) -> None:
    assert "a.slot" in refused(run_cli("chat", "--model", tiny_llama, "--slot", place, "--prompt", "Hi."))


def test_two_processes_on_one_file(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.slot"
    command = [sys.executable, "-m", "engine.cli", "chat", "--model", str(tiny_llama), "--slot", str(file), "--json"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, "--max-tokens", "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as first:
        assert first.stdin
        assert first.stdout
        print("Hi.", file=first.stdin, flush=True)
        assert json.loads(first.stdout.readline())["finish_reason"]
        sentence = refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--prompt", "Me too."))
        assert "open in another" in sentence
        assert "open in another" in refused(run_cli("inspect", file))
        print("Still mine.", file=first.stdin, flush=True)
        assert json.loads(first.stdout.readline())["finish_reason"]
        first.stdin.close()
        assert first.wait(30) == 0
    assert users(file) == ["Hi.", "Still mine."]


def test_a_file_that_is_no_slot_file_is_left_as_it_is(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("dear diary")
    assert "not a slot file" in refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--prompt", "Hi."))
    assert "not a slot file" in refused(run_cli("inspect", file))
    assert file.read_text() == "dear diary"


def write_gguf(path: Path, architecture: str) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["a", "b"])
    writer.add_token_types([1, 1])
    writer.add_token_merges([])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "plamo")
    assert "plamo" in refused(run_cli("chat", "--model", path, "--prompt", "Hi."))


def test_wrong_usage_has_status_2() -> None:
    for wrong in (
        ["chat"],
        ["chat", "--model", "m", "--edit", "0"],
        ["sing"],
        [],
        ["bench", "--model", "m", "--runs", "x"],
    ):
        assert main(wrong) == 2
    assert run_cli("sing").status == 2


def test_edits_of_messages_that_are_not_there(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.slot"
    assert "empty" in refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--regenerate"))
    sentence = refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--edit", 3, "--prompt", "x"))
    assert "no user message 3" in sentence
    assert "new text" in refused(run_cli("chat", "--model", tiny_llama, "--slot", file, "--edit", 1))


def test_help_says_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        [],
        ["chat"],
        ["inspect"],
        ["verify"],
        ["log"],
        ["bench"],
        ["simulate-retention"],
        ["fetch-starter"],
    ):
        assert main([*command, "--help"]) == 0
        assert "usage: dormouse-cli" in capsys.readouterr().out
    assert run_cli("--help").status == 0
