"""What the kernels become on processors that this machine is not."""

import re
from collections.abc import Callable
from functools import partial

import pytest

from engine.kernels import KERNELS
from engine.kernels.choice import PORTABLE
from engine.kernels.compiled import (
    attention,
    decode_attention,
    elementwise,
    float_matmul,
    host,
    matmul,
    store_rows,
    team,
)
from engine.kernels.compiled.ir import Module
from engine.kernels.compiled.isa import AVX2, AVX512VNNI, AVXVNNI, INSTRUCTION_SETS, NEON, InstructionSet
from engine.kernels.compiled.library import compile_module, target_machine
from engine.kernels.layout import Layout
from engine.quants.blocks import Q4_1, Q8_0
from engine.quants.k_blocks import Q2_K, Q6_K
from engine.quants.table_blocks import IQ4_XS, MXFP4

X86 = "x86_64-linux-gnu"
ARM = "aarch64-linux-gnu"
LAYOUTS = [f.layout for f in (Q2_K, Q4_1, Q6_K, Q8_0, IQ4_XS, MXFP4)]  # one of each way to store values and scales
OTHERS: dict[str, Callable[[Module, InstructionSet], object]] = {
    "team": team.write_team,
    "elementwise": elementwise.write_elementwise,
    "store rows": store_rows.write_store_rows,
    **{f"matmul {t}": partial(float_matmul.write_float_matmul, type_name=t) for t in ("f32", "f16", "bf16")},
    **{f"attention {t}": partial(attention.write_attention, kv_type=t) for t in ("f16", "q4_0")},
    **{f"decode {t}": partial(decode_attention.write_decode_attention, kv_type=t) for t in ("f16", "q4_0")},
}


def assembly(isa: InstructionSet, triple: str, write: Callable[[Module, InstructionSet], object]) -> str:
    """Return what a module becomes."""
    machine = target_machine(isa, triple)
    machine.emit_object = lambda module: machine.emit_assembly(module).encode()
    module = Module("module")
    write(module, isa)
    return compile_module(module, machine).decode()


@pytest.mark.parametrize(
    ("isa", "triple", "instruction"),
    [(AVX512VNNI(), X86, r"vpdpbusd\s.*%zmm"), (AVXVNNI(), X86, r"\{vex\}\s+vpdpbusd\s.*%ymm"),
     (NEON(), ARM, r"sdot\s+v\d+\.4s, v\d+\.16b, v\d+\.16b")],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("n_digits", [1, 2])
def test_dot_products_take_one_instruction(
    isa: InstructionSet, triple: str, instruction: str, layout: Layout, n_digits: int
) -> None:
    text = assembly(isa, triple, partial(matmul.write_matmul, layout=layout, n_digits=n_digits))
    assert re.search(instruction, text)


@pytest.mark.parametrize("isa", [AVX512VNNI(), AVXVNNI()], ids=lambda isa: isa.name)
@pytest.mark.parametrize("name", OTHERS)
def test_the_other_kernels_can_be_compiled(isa: InstructionSet, name: str) -> None:
    assert assembly(isa, X86, OTHERS[name])


def test_every_instruction_set_has_its_place_in_the_order() -> None:
    assert (*INSTRUCTION_SETS, PORTABLE) == KERNELS


def test_a_processor_runs_what_it_has_all_features_of() -> None:
    everything = {feature: True for isa in INSTRUCTION_SETS.values() for feature in isa.features}
    assert all(isa.runs_on(everything) for isa in INSTRUCTION_SETS.values())
    assert not AVX512VNNI.runs_on({**everything, "avx512vnni": False})
    assert not AVX2.runs_on({})
    assert not NEON.runs_on({"neon": True})


@pytest.mark.parametrize(("capabilities", "has_them"), [(1 << 20 | 1, True), (0xFFFFF, False)])
def test_linux_is_asked_for_the_dot_products_of_arm(
    monkeypatch: pytest.MonkeyPatch, capabilities: int, has_them: bool
) -> None:
    class System:
        """What ctypes gives for the C library."""

        def __init__(self, _name: None) -> None:
            self.getauxval = lambda kind: capabilities if kind == 16 else 0

    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(host.sys, "platform", "linux")
    monkeypatch.setattr(host.ctypes, "CDLL", System)
    assert host.host_features()["dotprod"] is has_them
