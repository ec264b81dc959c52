"""The process in which llama.cpp's server runs, see `peer`: a script that needs nothing but the wheel.

It is given its options as JSON, prints one line of JSON (see `_serve`), and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def _serve(options: dict[str, Any]) -> None:
    """Run the server; print its host, its port, the seconds that it took to start, and how it was built."""
    import xllamacpp  # noqa: PLC0415, 100 MB that whoever imports this file can do without

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
    # The library writes to the standard output as well: keep that for our line alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    started = time.perf_counter()
    server = xllamacpp.Server(params)
    load_s = time.perf_counter() - started
    host, port = server.listening_address.removeprefix("http://").rsplit(":", 1)
    features = xllamacpp.get_system_info().strip(" |\n")
    print(json.dumps([host, int(port), load_s, f"xllamacpp {xllamacpp.__version__}, {features}"]), file=out, flush=True)
    sys.stdin.read()
    os._exit(0)  # at once: nothing of the server is worth a shutdown


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
