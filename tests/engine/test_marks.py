"""Marks: each holds for what it was made for, and for nothing else."""

from dataclasses import asdict, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.slot.marks import Claim, Marks, TokenDigests
from engine.slot.records import Cursor, Segment
from engine.slot.segments import SegmentTree
from tests.slot_samples import sample_model

MODEL = sample_model("m")
CLAIM = Claim("rows", "attention", "target", 3, 11, bytes(32))
PAYLOAD = (b"hidden", b"next tokens", b"states")
WORDS = st.text("ab", max_size=3)
NUMBERS = st.integers(0, 12)
CLAIMS = st.builds(Claim, WORDS, WORDS, WORDS, NUMBERS, NUMBERS, st.binary(max_size=3))
PAYLOADS = st.lists(st.binary(max_size=3) | st.none(), max_size=3).map(tuple)


def marks(mark: bytes | None = None, *, model=MODEL) -> Marks:
    return Marks(model, SegmentTree(), {} if mark is None else {1: mark})


def test_a_mark_holds_for_its_own_claim() -> None:
    mark = marks().make(CLAIM, PAYLOAD)
    assert marks(mark).hold(1, CLAIM, PAYLOAD)
    assert not marks(mark).hold(2, CLAIM, PAYLOAD)
    assert not marks().hold(1, CLAIM, PAYLOAD)
    for other in (mark[:-1], mark[::-1], b"", bytes(32)):
        assert not marks(other).hold(1, CLAIM, PAYLOAD)


@given(CLAIMS, PAYLOADS, CLAIMS, PAYLOADS)
def test_no_two_claims_have_one_mark(claim: Claim, payload: tuple, other: Claim, other_payload: tuple) -> None:
    same = (claim, payload) == (other, other_payload)
    assert (marks().make(claim, payload) == marks().make(other, other_payload)) == same


@pytest.mark.parametrize("field", asdict(CLAIM))
def test_every_part_of_a_claim_counts(field: str) -> None:
    more = {int: 1, str: "x", bytes: b"x"}[type(getattr(CLAIM, field))]
    other = replace(CLAIM, **{field: getattr(CLAIM, field) + more})
    assert not marks(marks().make(CLAIM, PAYLOAD)).hold(1, other, PAYLOAD)


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"kv_type": "q8_0"}])
def test_another_model_has_other_marks(change: dict[str, str]) -> None:
    mark = marks().make(CLAIM, PAYLOAD)
    assert not marks(mark, model=replace(MODEL, **change)).hold(1, CLAIM, PAYLOAD)
    assert marks(mark, model=replace(MODEL, id=7, path="/elsewhere", name="renamed")).hold(1, CLAIM, PAYLOAD)


def test_another_installation_has_other_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = marks().make(CLAIM, PAYLOAD)
    assert marks(mark).hold(1, CLAIM, PAYLOAD)
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert not marks(mark).hold(1, CLAIM, PAYLOAD)


@given(st.lists(st.integers(0, 5), max_size=40), st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_digests_are_those_of_the_ids_however_they_are_divided(ids: list[int], cuts: set[int], n: int) -> None:
    token_ids = np.array(ids, np.int32)
    tree, above, cursors = SegmentTree(), None, {0: Cursor(None, 0)}
    for number, (lo, hi) in enumerate(pairwise(sorted({0, *(cut for cut in cuts if cut < len(ids)), len(ids)})), 1):
        length = len(above.token_ids) if above else 0
        above = Segment.follow(number, model=1, parent=above, length=length, token_ids=token_ids[lo:hi])
        tree.add(above)
        cursors |= {i: Cursor(number, i - lo) for i in range(lo + 1, hi + 1)}
    digests, n = TokenDigests(tree), min(n, len(ids))
    for i in (n, len(ids), 0, n):
        assert digests.until(cursors[i]) == sha256(token_ids[:i].tobytes()).digest()
