"""Which kernels are loaded, and what is said where the fastest can't be."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.errors import DormouseError
from engine.kernels import Kernels, choice, load_kernels
from engine.kernels.compiled.kernels import CompiledKernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.self_check import KernelFault, check_kernels
from tests.instruction_sets import COMPILED, make_kernels


@pytest.fixture(name="load")
def _load(monkeypatch: pytest.MonkeyPatch, kernel_cache: Path) -> Callable[..., Kernels]:
    """Load kernels without threads, as on a machine where the environment says nothing."""
    monkeypatch.delenv("DORMOUSE_KERNELS", raising=False)
    return lambda name=None: load_kernels(name, n_threads=1, cache_folder=kernel_cache)


def test_the_fastest_is_taken_without_a_note(load: Callable[..., Kernels]) -> None:
    kernels = load()
    assert (kernels.name, kernels.note) == (choice.runnable()[0], None)


def test_a_name_or_the_environment_decides(load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load("numpy").name, load("numpy").note) == ("numpy", None)
    monkeypatch.setenv("DORMOUSE_KERNELS", "numpy")
    assert load().name == "numpy"
    monkeypatch.setenv("DORMOUSE_KERNELS", "abacus")
    with pytest.raises(DormouseError, match="abacus"):
        load()


def test_kernels_of_another_processor_are_refused(
    load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "runnable", lambda: ("numpy",))
    with pytest.raises(DormouseError, match="“neon” can't run"):
        load("neon")


def no_compiler(*_: object, **__: object) -> None:
    raise RuntimeError("out of order")


def wrong_products(self: CompiledKernels, x: np.ndarray, _: object) -> np.ndarray:
    return np.zeros((len(x), 20), np.float32)


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [("__init__", no_compiler, "can't be compiled"), ("prepare", no_compiler, "out of order"),
     ("matmul", wrong_products, "products come out wrong")],
)  # fmt: skip
def test_faulty_kernels_are_left_for_the_next_and_refused_by_name(
    load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], reason: str
) -> None:
    fastest = choice.runnable()[0]
    monkeypatch.setattr(CompiledKernels, name, broken)
    kernels = load()
    assert kernels.name == "numpy"
    assert kernels.note is not None
    assert reason in kernels.note
    assert fastest in kernels.note
    with pytest.raises(DormouseError, match=reason):
        load(fastest)


def test_without_the_compiler_the_portable_kernels_say_so(
    load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for module in [name for name in sys.modules if name.startswith("engine.kernels.compiled.")]:
        monkeypatch.delitem(sys.modules, module)
    assert choice.runnable() == ("numpy",)
    kernels = load()
    assert kernels.name == "numpy"
    assert kernels.note is not None
    assert "compiler" in kernels.note


def test_an_unknown_processor_runs_the_portable_kernels_and_says_so(
    load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.compiled.host.host_features", dict)
    kernels = load()
    assert (kernels.name, kernels.note) == ("numpy", "there are no faster ones for this processor")


@pytest.mark.parametrize("name", COMPILED)
def test_the_check_finds_each_kind_of_fault(name: str, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = make_kernels(name, n_threads=2, cache_folder=kernel_cache)
    check_kernels(kernels)
    for operation in ("matmul", "attention", "rms_norm", "silu_mul"):
        original = getattr(kernels, operation)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, operation, lambda *a, original=original, **b: original(*a, **b) * np.float32(np.nan))
            with pytest.raises(KernelFault):
                check_kernels(kernels)
    kernels.close()


def test_the_reference_is_not_checked_against_itself(
    load: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "check_kernels", no_compiler)
    assert isinstance(load("numpy"), ReferenceKernels)
