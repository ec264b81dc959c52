"""`kill -9` in the middle of turns: what was sent is never lost."""

import random
import subprocess
import sys
from pathlib import Path

from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.e2e.conftest import Chat

GREEDY = ("--temperature", 0, "--max-tokens", 5)

# Sends one message after the other, tells of each when it is saved, and writes a line for each event.
WRITER = """
import sys
from pathlib import Path
from engine import events
from engine.cli.client import Client
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings

model, file, n_ctx, name = sys.argv[1:]
client = Client(kernels=None, n_threads=None, warn=print)
opening = client.session.open(Path(file))
client.wait(opening)
client.wait(client.session.load_model(Path(model), EngineSettings(n_ctx=int(n_ctx))))
print("ready", flush=True)
for number in range(1000):
    text = f"{name}.{number} " + "Tell me about mice and hares, please. " * 3
    settings = TurnSettings(SamplingParameters(temperature=0), max_tokens=12)
    for event in client.follow(client.session.send(opening.conversation, text, settings=settings)):
        print(text if isinstance(event, events.TurnSaved) else "", flush=True)
"""
N_CTX = 32768
N_KILLS = 10


def test_ten_kills_lose_no_message_that_was_sent(tiny_llama: Path, tmp_path: Path, chat: Chat) -> None:
    file, sent = tmp_path / "killed.slot", list[str]()
    moments = random.Random(5)
    for kill in range(N_KILLS):
        command = [sys.executable, "-c", WRITER, str(tiny_llama), str(file), str(N_CTX), f"kill {kill}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == "ready\n"
            told = [writer.stdout.readline() for _ in range(moments.randrange(60))]
            writer.kill()
            told += writer.stdout
            sent += [line.removesuffix("\n") for line in told if line.endswith("\n") and line != "\n"]
        assert verify(file) == []
        with SlotFile.open(file) as opened:
            assert not opened.damage
            users = [message.text for message in opened.messages() if message.role == "user"]
        # a message may have been saved just before it could be told
        assert [text for text in users if text in sent] == sent
        assert len(users) <= len(sent) + kill + 1
    assert len(sent) >= N_KILLS
    (turn,) = chat(tiny_llama, "--slot", file, "--n-ctx", N_CTX, *GREEDY, "--prompt", "Still there?")
    assert turn["finish_reason"] == "length"
    assert turn["source"] == "restored"
    assert turn["prompt_n"] < 300
