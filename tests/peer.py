"""llama.cpp's server, asked only what it was never asked before: its answers are kept between the runs of the tests.

An answer depends on the wheel, on the processor, on how the wheel is asked, on the model's file, on the server's
options and on all that this server was asked until then. The digest of all that is the answer's key, so that none is
ever taken for another.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import platform
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any, Self

import xxhash
from llvmlite import binding as llvm
from platformdirs import user_cache_path

from bench import peer as real
from bench import peer_server

# Resolved at import, before any test has a HOME of its own.
ANSWERS = user_cache_path("dormouse") / "test-peer" / "answers.sqlite"
Question = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of a method of the server, and what it is called with."""


class Peer:
    """Stands in for the benchmarks' `Peer`, which starts when the first question is a new one."""

    def __init__(self, model: Path, **options: Any) -> None:
        self._model = model
        self._options = {"n_threads": 1} | options
        self._key = _digest(_of_wheel(), _of_file(model), self._options)
        self._asked: list[Question] = []  # what the server, if there will be one, has yet to be asked
        self._new: list[tuple[str, bytes]] = []
        self._open = ExitStack()
        self._server: real.Peer | None = None

    def __enter__(self) -> Self:
        ANSWERS.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._answers = self._open.enter_context(closing(sqlite3.connect(ANSWERS, timeout=60)))
        with self._answers:
            self._answers.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer BLOB)")
        return self

    def __exit__(self, *_: object) -> None:
        with self._open, self._answers:
            self._answers.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", self._new)

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Return the token ids of a text."""
        return self._ask("tokenize", text, parse_special=parse_special, add_special=add_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, control tokens spelled out."""
        return self._ask("detokenize", _ints(ids))

    def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        """Return the text of a conversation with the generation prompt."""
        return self._ask("apply_template", list(messages))

    def next_logprobs(self, ids: Iterable[int], n_probs: int = 400, **options: Any) -> list[tuple[int, float]]:
        """Return (id, natural log of the probability) of the likeliest next tokens, the best first."""
        return [(token, value) for token, value in self._ask("next_logprobs", _ints(ids), n_probs=n_probs, **options)]

    def saved_slot(self, ids: Iterable[int]) -> bytes:
        """Return the file of a slot that has read some tokens."""
        return bytes.fromhex(self._ask("saved_slot", _ints(ids)))

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return the kept answer, else that of the server, which has been asked by then whatever was asked before."""
        question = name, arguments, options
        self._key = _digest(self._key, question)
        self._asked.append(question)
        found = self._answers.execute("SELECT answer FROM answers WHERE key = ?", (self._key,)).fetchone()
        if found is not None:
            return json.loads(zlib.decompress(found[0]))
        answers = [self._answer(*asked) for asked in self._asked]
        self._asked.clear()
        self._new.append((self._key, zlib.compress(json.dumps(answers[-1]).encode())))
        return answers[-1]

    def _answer(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._server is None:
            self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
            server = real.Peer(self._model, slot_save_path=self._folder, **self._options)
            self._server = self._open.enter_context(server)
        if name != "saved_slot":
            ask: Callable[..., Any] = getattr(self._server, name)
            return ask(*arguments, **options)
        self._server.completion(*arguments, n_predict=0, id_slot=0)
        self._server.save_slot("slot")
        return (self._folder / "slot").read_bytes().hex()


def _digest(*parts: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode())


@cache
def _of_wheel() -> str:
    """Digest what answers, and how it is asked."""
    wheel = importlib.metadata.distribution("xllamacpp")
    sources = [inspect.getsource(module) for module in (real, peer_server)]
    features = sorted(llvm.get_host_cpu_features().items())
    return _digest(wheel.version, wheel.read_text("RECORD"), platform.platform(), features, sources)


def _of_file(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            digest.update(part)
    return digest.hexdigest()


def _ints(ids: Iterable[int]) -> list[int]:
    return [int(i) for i in ids]
