"""Model files made wrong in every place: used or refused in a sentence, and never the end of the process, or a hang."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.formats.gguf import open_gguf
from tests.model_mutations import MODELS, Draft, Mutation

resource = pytest.importorskip("resource", reason="this system limits no process")


class Child:
    """A process that uses wrong models; another takes its place where one ended it."""

    def __init__(self, folder: Path, kernel_cache: Path) -> None:
        self._arguments = [sys.executable, "-W", "ignore", "-m", "tests.model_worker", str(folder), str(kernel_cache)]
        self._errors = folder / "stderr"
        self._start()

    def _start(self) -> None:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).parents[2],
            )

    def use(self, number: int) -> tuple[str, str]:
        """Return what was done to a model, and what became of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        told, outcome = (self._process.stdout.readline().strip() for _ in range(2))
        if not outcome:
            self.close()
            outcome = f"ended with {self._process.returncode}: {self._errors.read_text()[-2000:]}"
            self._start()
        return told, outcome

    def close(self) -> None:
        self._process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory a process takes")
@pytest.mark.timeout(0)  # each model has its own
def test_no_model_file_ends_the_process(
    tmp_path: Path, kernel_cache: Path, n_model_mutations: int, record_property: Callable[[str, object], None]
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = Child(tmp_path, kernel_cache)
    figures, wrong = Counter[str](), []
    for number in range(n_model_mutations):
        told, outcome = child.use(number)
        kind = outcome.partition(" ")[0]
        figures[kind] += 1
        if kind not in ("accepted", "refused"):
            wrong.append(f"{number}: {told} => {outcome}")
    child.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record_property(
        "figures",
        f"{n_model_mutations} wrong model files: {figures['refused']} refused, {figures['accepted']} accepted, "
        f"{figures['wrong']} with another error, {figures['ended']} crashes or hangs; {seconds:.0f} s",
    )
    assert not wrong, "\n".join(wrong)
    assert figures["accepted"] > n_model_mutations // 10  # most mutations are refused before anything is computed


def test_what_is_not_made_wrong_is_the_same_file(tmp_path: Path) -> None:
    path, again = MODELS["lfm2"]().write(tmp_path / "model.gguf"), tmp_path / "again.gguf"
    again.write_bytes(Draft.read(path).encode())
    with open_gguf(path) as one, open_gguf(again) as other:
        assert one.metadata.keys() - other.metadata.keys() == {"tokenizer.chat_template"}
        assert all(str(one.metadata[key]) == str(value) for key, value in other.metadata.items())
        assert list(one.tensors) == list(other.tensors)
        for name in one.tensors:
            assert one.tensor_bytes(name).tobytes() == other.tensor_bytes(name).tobytes()


def test_a_mutation_is_known_by_its_number(tmp_path: Path) -> None:
    written, told = set[bytes](), set[str]()
    for number in (3, 3, 4):
        mutation = Mutation(number)
        draft = Draft.read(MODELS[mutation.model]().write(tmp_path / "model.gguf"))
        told.add(mutation.apply(draft))
        written.add(draft.encode())
    assert len(written) == len(told) == 2
