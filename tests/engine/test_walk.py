"""Random walks over every kind of memory: after each step the memory is what a fresh evaluation gives, bit by bit."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from engine.errors import UnsupportedError
from engine.kernels import Kernels, load_kernels
from engine.kernels.kv_types import KV_TYPES
from engine.runtime import EngineSettings, Runtime
from tests.models import full_attention, recurrent, windowed
from tests.models.tiny import TinyModel
from tests.received_walk import ReceivedWalk
from tests.walk import Walk

STEPS_PER_WALK = 40
KINDS = {
    "full attention": full_attention.MODELS["llama"],
    "sliding window": windowed.MODELS["gemma3"],
    "recurrent": recurrent.MODELS["mamba2"],
    "hybrid": recurrent.MODELS["lfm2"],
    "hybrid with a sliding window": recurrent.MODELS["lfm2 with a sliding window"],
}
OTHERS = {
    name: build
    for name, build in (full_attention.MODELS | windowed.MODELS | recurrent.MODELS).items()
    if build not in KINDS.values()
}
MODELS = KINDS | OTHERS


@pytest.fixture(scope="module", name="kernels")
def _kernels() -> Iterator[Kernels]:
    kernels = load_kernels(n_threads=1)
    yield kernels
    kernels.close()


def walk(runtimes: Sequence[Runtime], folder: Path, *, n_steps: int, start: int = 0, kind: type[Walk] = Walk) -> int:
    """Take at least `n_steps` steps, in walks of their own; return how many were taken."""
    numbers = iter(range(1 << 30))

    def new_folder() -> Path:
        path = folder / f"walk{next(numbers)}"
        path.mkdir()
        return path

    machine = type("Conversations", (kind,), {
        "runtimes": staticmethod(lambda: runtimes), "folder": staticmethod(new_folder), "n_steps": 0,
    })  # fmt: skip
    rounds = 0
    while machine.n_steps < n_steps:
        left = n_steps - machine.n_steps
        chosen = settings(
            max_examples=max(1, math.ceil(left / STEPS_PER_WALK)),
            stateful_step_count=STEPS_PER_WALK,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        run_state_machine_as_test(seed(start + rounds)(machine), settings=chosen)
        rounds += 1
    sys.stdout.write(f"{machine.n_steps:,} steps\n")
    return int(machine.n_steps)


def variants(runtime: Runtime) -> list[Runtime]:
    """Return the same model with other K/V types and small budgets."""
    chosen = [
        EngineSettings(),
        EngineSettings(disk_budget=0),
        EngineSettings(disk_budget=60_000),
        EngineSettings(disk_budget=300_000),
        EngineSettings(kv_type="f32"),
        EngineSettings(kv_type="q8_0"),
    ]
    found = []
    for one in chosen:
        try:
            runtime.model.new_memory(KV_TYPES[one.kv_type])
        except UnsupportedError:
            continue
        found.append(replace(runtime, settings=one))
    return found


def load(build: Callable[[], TinyModel], kernels: Kernels, folder: Path) -> list[Runtime]:
    """Return a tiny model in several settings, and another model to change to."""
    model = Runtime.load(build().write(folder / "model.gguf"), kernels, EngineSettings())
    other = Runtime.load(full_attention.MODELS["qwen2"]().write(folder / "other.gguf"), kernels, EngineSettings())
    return [*variants(model), other]


@pytest.mark.parametrize("name", KINDS)
def test_walks(name: str, kernels: Kernels, tmp_path: Path, walk_steps: int) -> None:
    """Walk with one model of each kind of memory."""
    n_steps = walk_steps // len(KINDS)
    assert walk(load(KINDS[name], kernels, tmp_path), tmp_path, n_steps=n_steps) >= n_steps


@pytest.mark.parametrize("name", ["full attention", "sliding window", "hybrid"])
def test_walks_with_files_that_a_stranger_changed(name: str, kernels: Kernels, tmp_path: Path, walk_steps: int) -> None:
    n_steps = walk_steps // 25
    runtimes = [runtime for runtime in load(KINDS[name], kernels, tmp_path) if runtime.settings.disk_budget]
    assert walk(runtimes, tmp_path, n_steps=n_steps, kind=ReceivedWalk) >= n_steps


@pytest.mark.parametrize("name", OTHERS)
def test_walks_of_other_architectures(name: str, kernels: Kernels, tmp_path: Path, walk_steps: int) -> None:
    assert walk(load(OTHERS[name], kernels, tmp_path), tmp_path, n_steps=walk_steps // 200) > 0


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_walks_of_real_models(
    name: str, request: pytest.FixtureRequest, kernels: Kernels, tmp_path: Path, walk_steps: int
) -> None:
    model = Runtime.load(request.getfixturevalue(name), kernels, EngineSettings())
    assert walk(variants(model)[:3], tmp_path, n_steps=walk_steps // 100) > 0
