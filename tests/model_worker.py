"""The process in which wrong models are loaded: numbers of mutations come in a line each, what became of them goes out.

So where it ends, or is ended because it computes for too long, it is known which model did that.
"""

from __future__ import annotations

import faulthandler
import re
import resource
import signal
import sys
from ast import literal_eval
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from engine.errors import DormouseError
from engine.kernels import Kernels, load_kernels
from engine.runtime import EngineSettings, Runtime
from tests.model_mutations import MODELS, Draft, Mutation

MEMORY = 2 << 30  # bytes that the process may take beside what it has at first
SECONDS = 10  # of processor time for a model
SECONDS_ASLEEP = 300  # of anybody's time, where it waits for what never comes
TEXT = "the hare<|im_end|>\nwas at tea"
_OTHER_SHAPE = re.compile(r"has the tensor (\S+) in the shape (\(.*?\)) instead of (\(.*?\))\.")
_MOST_REPAIRS = 40
_MOST_WEIGHTS = 1 << 22  # of a tensor that is made to fit


def use(path: Path, kernels: Kernels) -> None:
    """Load a model, read a text and go on for some tokens, as a conversation would."""
    runtime = Runtime.load(path, kernels, EngineSettings())
    model, n_vocab = runtime.model, runtime.model.config.n_vocab
    ids = runtime.tokenizer.encode(TEXT, parse_special=True)
    assert ((ids >= 0) & (ids < n_vocab)).all()
    special = runtime.tokenizer.vocabulary.special
    for token in (special.bos_id, special.eos_id, special.unk_id, *special.end_of_generation):
        assert token is None or 0 <= token < n_vocab
    memory = model.new_memory()
    hidden = model.forward(np.resize(ids, 12) if len(ids) else np.zeros(12, np.int32), memory)
    for _ in range(5):
        token = int(model.logits(hidden[-1:]).argmax())
        runtime.tokenizer.token_bytes(token)
        hidden = model.forward(np.array([token], np.int32), memory)


class Worker:
    """Makes and uses models by their numbers, under limits."""

    def __init__(self, folder: Path, kernel_cache: Path) -> None:
        self._folder = folder
        self._kernels = load_kernels(None, n_threads=1, cache_folder=kernel_cache)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))

    def make(self, number: int) -> str:
        """Write the model of a number; return what is wrong with it."""
        mutation = Mutation(number)
        original = self._folder / f"{sorted(MODELS).index(mutation.model)}.gguf"
        if not original.exists():
            MODELS[mutation.model]().write(original)
        self._draft = Draft.read(original)
        told = mutation.apply(self._draft)
        self._path.write_bytes(self._draft.encode())
        return told

    def do(self) -> str:
        """Return what became of the model: `accepted`, `refused` and why, or `wrong` and what.

        Where only the shapes of tensors contradict what was changed, these are made to fit, so that kernels see models
        of unusual sizes.
        """
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # both of which end the process
        signal.alarm(SECONDS_ASLEEP)
        outcome = self._use()
        for _ in range(_MOST_REPAIRS):
            found = _OTHER_SHAPE.search(outcome)
            if found is None:
                break
            shape: Sequence[int] = literal_eval(found[3])
            if prod(shape) > _MOST_WEIGHTS:
                break
            self._draft.reshape(found[1], shape)
            self._path.write_bytes(self._draft.encode())
            outcome = self._use()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        return outcome

    @property
    def _path(self) -> Path:
        return self._folder / "mutated.gguf"

    def _use(self) -> str:
        try:
            use(self._path, self._kernels)
        except DormouseError as error:
            sentence = str(error)
            is_one = sentence.endswith(".") and "\n" not in sentence and len(sentence) < 1000
            return f"refused {sentence}" if is_one else f"wrong {sentence[:1000]!r}"
        except Exception as error:
            return f"wrong {error!r}"
        return "accepted"


def main(folder: str, kernel_cache: str) -> None:
    """Serve a process that asks for models."""
    faulthandler.enable()
    worker = Worker(Path(folder), Path(kernel_cache))
    for line in sys.stdin:
        for answer in (worker.make(int(line)), worker.do()):
            sys.stdout.write(answer.replace("\n", " ") + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
