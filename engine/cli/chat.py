"""The command `chat`: one turn per prompt, or a conversation in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

from engine import events
from engine.cli.client import Client
from engine.cli.terminal import StatusLine, say
from engine.errors import DormouseError
from engine.jobs import Job
from engine.paths import library_folder
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.slot_file import SlotFile
from engine.slot.reuse import IN_WORDS, SURPRISING
from engine.slot.transcript import Transcript

_HELP = "/regenerate   /edit N TEXT   /select ID   /quit   (Ctrl-C stops a reply)"


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    prompts = [_read(prompt) for prompt in arguments.prompts or []]
    if arguments.edit and not prompts:
        raise DormouseError("--edit needs the new text: add --prompt or --prompt-file.")
    library = arguments.library or library_folder()
    is_new = arguments.slot is not None and not arguments.slot.exists()
    client = Client(kernels=arguments.kernels, n_threads=arguments.threads, warn=say, library=library)
    try:
        chat = Chat(client, arguments)
        if prompts or arguments.regenerate or arguments.edit or arguments.select:
            chat.start(prompts)
        else:
            chat.interact()
        chat.close()
    finally:
        unsaved = client.session.close()
        for sentence in unsaved:
            say(sentence)
        if is_new and not unsaved:
            _remove_empty(arguments.slot)
    return 1 if unsaved else 0


def _remove_empty(path: Path) -> None:
    """Remove a file that was made for words of which none came."""
    with suppress(DormouseError, OSError):
        with SlotFile.open(path, read_only=True) as file:
            has_words = bool(file.messages())
        if not has_words:
            path.unlink()


class Chat:
    """One conversation on the command line."""

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self._client = client
        self._arguments = arguments
        self._status = StatusLine()
        a = arguments
        sampling = SamplingParameters(a.temperature, a.top_k, a.top_p, a.seed)
        self._settings = TurnSettings(sampling, a.max_tokens)
        # the conversation first: it is readable, and its file locked, while the model loads
        opening = client.session.open(a.slot)
        loading = client.session.load_model(a.model, _engine_settings(a))
        opened = client.wait(opening)
        assert isinstance(opened, events.Opened)
        assert opening.conversation is not None
        self._conversation = opening.conversation
        self._transcript = opened.transcript
        for sentence in opened.damage:
            say(f"{a.slot}: {sentence}")
        _check_system(a.system, opened.transcript)
        self._load(loading)

    def start(self, prompts: list[str]) -> None:
        """Do what the options ask first, then one turn per prompt."""
        a = self._arguments
        if a.select is not None:
            self._select(a.select)
        elif a.regenerate:
            self._regenerate()
        elif a.edit is not None:
            self._edit(a.edit, prompts.pop(0))
        for prompt in prompts:
            self._send(prompt)

    def interact(self) -> None:
        """Read turns and commands from stdin to its end."""
        if not self._arguments.json:
            for message in self._transcript.path():
                print(f"{message.role}: {message.text}\n")
        if sys.stdin.isatty():
            say(_HELP)
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            try:
                match line.split(maxsplit=2):
                    case []:
                        continue
                    case ["/quit"]:
                        return
                    case ["/help"]:
                        say(_HELP)
                    case ["/regenerate"]:
                        self._regenerate()
                    case ["/edit", number, text] if number.isdecimal():
                        self._edit(int(number), text)
                    case ["/select", id] if id.isdecimal():
                        self._select(int(id))
                    case _:
                        self._send(line)
            except DormouseError as error:
                say(str(error))

    def close(self) -> None:
        """Write everything."""
        self._client.wait(self._client.session.close_conversation(self._conversation))

    def _load(self, job: Job) -> None:
        for event in self._client.follow(job):
            match event:
                case events.ModelLoading(done=done, total=total):
                    self._status.show(f"loading the model: {100 * done // total} %")
                case events.KernelsCompiling():
                    self._status.show("compiling the kernels for this processor, once")
                case events.ModelLoaded() as loaded:
                    self._status.clear()
                    if loaded.template_is_fallback:
                        say(f"The model {loaded.name} has no chat template; a plain one (ChatML) is used.")
                    if loaded.kernels_note is not None:
                        say(f"The kernels “{loaded.kernels}” compute: {loaded.kernels_note}.")
                case events.LoadCancelled():
                    raise KeyboardInterrupt
        self._status.clear()

    def _send(self, text: str) -> None:
        system = None if self._transcript.messages else self._arguments.system
        session = self._client.session
        self._show(session.send(self._conversation, text, system=system, settings=self._settings))

    def _regenerate(self) -> None:
        self._show(self._client.session.regenerate(self._conversation, settings=self._settings))

    def _edit(self, number: int, text: str) -> None:
        messages = self._transcript.user_messages()
        if not 1 <= number <= len(messages):
            raise DormouseError(f"There is no user message {number}: the conversation has {len(messages)}.")
        message = messages[number - 1].id
        self._show(self._client.session.edit(self._conversation, message, text, settings=self._settings))

    def _select(self, message: int) -> None:
        selected = self._client.wait(self._client.session.select(self._conversation, message))
        assert isinstance(selected, events.Selected)
        self._transcript = selected.transcript

    def _show(self, job: Job) -> None:
        """Follow a turn to its end."""
        for event in self._client.follow(job):
            match event:
                case events.TurnSaved(transcript=transcript):
                    self._transcript = transcript
                case events.PrefillStarted(prompt_n=prompt_n, reason=reason) if reason in SURPRISING and prompt_n:
                    say(f"reading {prompt_n:,} tokens: {IN_WORDS[reason]}")
                case events.PrefillProgress(cache_n=cache_n, done=done, total=total) if done < total:
                    self._status.show(f"reading {done:,} of {total:,} tokens, {cache_n:,} reused")
                case events.TokenGenerated(text=text) if not self._arguments.json:
                    self._status.clear()
                    print(text, end="", flush=True)
                case events.TurnFinished():
                    self._status.clear()
                    self._report(event)

    def _report(self, turn: events.TurnFinished) -> None:
        receipt = turn.receipt
        if self._arguments.json:
            print(json.dumps(turn_as_json(turn)), flush=True)
            return
        print(flush=True)
        seconds = receipt.predicted_ms / 1000
        donor = f" (shared with {receipt.donor})" if receipt.donor else ""
        speed = f", {receipt.predicted_n / seconds:.1f} tok/s" if seconds else ""
        say(
            f"[{receipt.source}: {receipt.cache_n:,} reused{donor}, {receipt.prompt_n:,} read in "
            f"{receipt.prompt_ms / 1000:.2f} s; {receipt.predicted_n:,} written{speed}; {turn.reply.finish_reason}]"
        )


def turn_as_json(turn: events.TurnFinished) -> dict[str, object]:
    """Return what `--json` prints of a turn. `predicted_n` counts `token_ids`: not the token that ended the reply."""
    receipt = turn.receipt
    return {
        "message_id": turn.reply.id,
        "text": turn.reply.text,
        "token_ids": list(turn.token_ids),
        "finish_reason": turn.reply.finish_reason,
        "prompt_n": receipt.prompt_n,
        "cache_n": receipt.cache_n,
        "prompt_ms": round(receipt.prompt_ms, 3),
        "predicted_n": receipt.predicted_n,
        "predicted_ms": round(receipt.predicted_ms, 3),
        "source": receipt.source,
        "reason": receipt.reason,
        "donor": receipt.donor,
        "logits_xxh3": turn.logits_xxh3,
    }


def _check_system(system: str | None, transcript: Transcript) -> None:
    """Raise DormouseError where a system message is wished for that a conversation can't have any more."""
    path = transcript.path()
    if system is not None and path and (path[0].role, path[0].text) != ("system", system):
        raise DormouseError("This conversation has begun already: its system message can't be set any more.")


def _engine_settings(arguments: argparse.Namespace) -> EngineSettings:
    a = arguments
    return EngineSettings(
        n_ctx=a.n_ctx,
        n_ubatch=a.n_ubatch,
        kv_type=a.kv_type,
        checkpoint_interval=a.checkpoint_interval,
        memory_budget=a.memory_budget << 20,
        disk_budget=a.disk_budget << 20,
    )


def _read(prompt: str | Path) -> str:
    if isinstance(prompt, str):
        return prompt
    try:
        return prompt.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise DormouseError(f"The prompt file {prompt} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DormouseError(f"The prompt file {prompt} is not UTF-8 text.") from error
