"""llama.cpp's own server, from the xllamacpp wheel: what our speed and our results are held against.

It runs in a process of its own and is asked over loopback HTTP.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from bench import peer_server
from engine.errors import DormouseError


class PeerError(DormouseError):
    """The peer is not there, does not start, or refuses a request; the text has its words."""


class Peer:
    """Run llama.cpp's server on one model for the length of a `with` block.

    Cache types are ggml's names in lower case (`f16`, `q8_0`); `flash_attn` is `on`, `off` or `auto`. Any other
    parameter is an attribute of xllamacpp's `CommonParams`; `n_ctx` is shared out among its `n_parallel` slots.

    Attributes:
        build: which wheel it is, and what processors its code is made for.
        load_s: seconds that the model took to load.
    """

    def __init__(
        self,
        model: Path,
        *,
        n_ctx: int = 4096,
        n_threads: int = 2,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        flash_attn: str = "auto",
        slot_save_path: Path | None = None,
        **params: object,
    ) -> None:
        self._options = {
            "model": str(model),
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_batch": n_batch,
            "n_ubatch": n_ubatch,
            "cache_type_k": cache_type_k,
            "cache_type_v": cache_type_v,
            "flash_attn": flash_attn,
            "params": params | ({"slot_save_path": f"{slot_save_path}{os.sep}"} if slot_save_path else {}),
        }
        self._process: subprocess.Popen[str] | None = None
        self._connection: http.client.HTTPConnection | None = None
        self.build = ""
        self.load_s = 0.0

    @staticmethod
    def require() -> None:
        """Raise PeerError if the wheel is not installed."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise PeerError("xllamacpp is not installed here; “pip install xllamacpp” brings it.")

    def start(self) -> None:
        """Start the server and wait until it answers. Raises PeerError."""
        self.require()
        with tempfile.TemporaryFile("w+") as log:
            # -P: the modules beside the script must not stand in for others
            self._process = subprocess.Popen(
                [sys.executable, "-P", peer_server.__file__, json.dumps(self._options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            started = _pipe(self._process.stdout).readline()
            if not started:
                self.stop()
                log.seek(0)
                raise PeerError(f"xllamacpp did not start: {log.read()[-2000:]}")
        host, port, self.load_s, self.build = json.loads(started)
        self._connection = http.client.HTTPConnection(host, port, timeout=600)

    def stop(self) -> None:
        """End the server's process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            _pipe(self._process.stdin).close()  # which ends it
            _pipe(self._process.stdout).close()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the running server's process."""
        assert self._process is not None
        return self._process.pid

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the server's answer to one request; raise PeerError with its words when it refuses."""
        assert self._connection is not None
        text = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, text, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"xllamacpp does not answer {path}: {error!r}") from error
        self._connection.close()  # the next request opens it again: the server drops one that is idle for a while
        if response.status != http.client.OK:
            raise PeerError(f"xllamacpp refuses {path}: {answer}")
        return answer

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Return the token ids of a text."""
        body = {"content": text, "parse_special": parse_special, "add_special": add_special}
        tokens: list[int] = self.request("POST", "/tokenize", body)["tokens"]
        return tokens

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens spelled out."""
        return str(self.request("POST", "/detokenize", {"tokens": _ints(ids)})["content"])

    def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        """Return the text of a conversation with the generation prompt."""
        return str(self.request("POST", "/apply-template", {"messages": list(messages)})["prompt"])

    def completion(self, prompt: Iterable[int] | str, **options: object) -> dict[str, Any]:
        """Complete a prompt of token ids or text; the options are those of the server's /completion."""
        body = {
            "prompt": prompt if isinstance(prompt, str) else _ints(prompt),
            "cache_prompt": True,
        } | options
        answer: dict[str, Any] = self.request("POST", "/completion", body)
        return answer

    def next_logprobs(
        self, prompt_ids: Iterable[int], n_probs: int = 400, **options: object
    ) -> list[tuple[int, float]]:
        """Return (id, natural log of the probability) of the likeliest next tokens, the best first.

        These are the model's own probabilities, before any sampling. The server tells none where it samples a
        token that ends within a character: a `logit_bias` among the options prevents it.
        """
        answer = self.completion(
            prompt_ids, **({"n_predict": 1, "n_probs": n_probs, "temperature": 0, "id_slot": 0} | options)
        )
        best = answer["completion_probabilities"][0]["top_logprobs"]
        return [(token["id"], token["logprob"]) for token in best]

    def save_slot(self, filename: str, *, slot: int = 0) -> dict[str, Any]:
        """Save a slot to a file in `slot_save_path`."""
        answer: dict[str, Any] = self.request("POST", f"/slots/{slot}?action=save", {"filename": filename})
        return answer

    def restore_slot(self, filename: str, *, slot: int = 0) -> dict[str, Any]:
        """Restore a slot from a file in `slot_save_path`."""
        answer: dict[str, Any] = self.request("POST", f"/slots/{slot}?action=restore", {"filename": filename})
        return answer


def _ints(ids: Iterable[int]) -> list[int]:
    return [int(i) for i in ids]


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
