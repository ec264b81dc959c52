"""llama.cpp's own server, from the xllamacpp wheel, as an oracle.

It runs in a process of its own and is asked over loopback HTTP.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self


class Peer:
    """Run llama.cpp's server on one model for the length of a `with` block.

    Cache types are ggml's names in lower case (`f16`, `q8_0`); `flash_attn` is `on`, `off` or `auto`. Any other
    parameter is an attribute of xllamacpp's `CommonParams`; `n_ctx` is shared out among its `n_parallel` slots.
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

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(self._options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            address = _pipe(self._process.stdout).readline()
            if not address:
                self.stop()
                log.seek(0)
                raise RuntimeError(f"the peer did not start: {log.read()[-2000:]}")
        host, port = json.loads(address)
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

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the server's answer to one request; raise `RuntimeError` with its words when it refuses."""
        assert self._connection is not None
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != http.client.OK:
            raise RuntimeError(f"{path}: {answer}")
        return answer

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Return the token ids of a text."""
        body = {"content": text, "parse_special": parse_special, "add_special": add_special}
        return self.request("POST", "/tokenize", body)["tokens"]

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens spelled out."""
        return self.request("POST", "/detokenize", {"tokens": _ints(ids)})["content"]

    def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        """Return the text of a conversation with the generation prompt."""
        return self.request("POST", "/apply-template", {"messages": list(messages)})["prompt"]

    def completion(self, prompt: Sequence[int] | str, **options: object) -> dict[str, Any]:
        """Complete a prompt of token ids or text; the options are those of the server's /completion."""
        body = {
            "prompt": prompt if isinstance(prompt, str) else _ints(prompt),
            "cache_prompt": True,
        } | options
        return self.request("POST", "/completion", body)

    def next_logprobs(self, prompt_ids: Sequence[int], n_probs: int = 400) -> list[tuple[int, float]]:
        """Return (id, natural log of the probability) of the likeliest next tokens, the best first.

        These are the model's own probabilities, before any sampling.
        """
        answer = self.completion(prompt_ids, n_predict=1, n_probs=n_probs, temperature=0, id_slot=0)
        best = answer["completion_probabilities"][0]["top_logprobs"]
        return [(token["id"], token["logprob"]) for token in best]

    def save_slot(self, filename: str, *, slot: int = 0) -> dict[str, Any]:
        """Save a slot to a file in `slot_save_path`."""
        return self.request("POST", f"/slots/{slot}?action=save", {"filename": filename})

    def restore_slot(self, filename: str, *, slot: int = 0) -> dict[str, Any]:
        """Restore a slot from a file in `slot_save_path`."""
        return self.request("POST", f"/slots/{slot}?action=restore", {"filename": filename})


def _ints(ids: Sequence[int]) -> list[int]:
    return [int(i) for i in ids]


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _serve(options: dict[str, Any]) -> None:
    """Run the server, print its address, and end with the standard input."""
    import xllamacpp  # noqa: PLC0415, 100 MB that the tests' own process can do without

    params = xllamacpp.CommonParams()
    params.verbosity = -1
    params.model.path = options["model"]
    params.n_ctx, params.n_batch, params.n_ubatch = options["n_ctx"], options["n_batch"], options["n_ubatch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["n_threads"]
    params.cache_type_k = xllamacpp.ggml_type[f"GGML_TYPE_{options['cache_type_k'].upper()}"]
    params.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{options['cache_type_v'].upper()}"]
    flash_attn = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[options["flash_attn"]]
    params.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash_attn}"]
    params.fit_params = params.warmup = False
    for name, value in options["params"].items():
        setattr(params, name, value)
    # The library writes to the standard output as well: keep that for the address alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = xllamacpp.Server(params)
    host, port = server.listening_address.removeprefix("http://").rsplit(":", 1)
    print(json.dumps([host, int(port)]), file=out, flush=True)
    sys.stdin.read()
    os._exit(0)  # at once: nothing of the server is worth a shutdown


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
