"""Which checkpoints are kept: the decision alone, against sums over all rows and all prompts that may come."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.slot.retention import Place, Retention, RowCost

FULL = 1 << 40


def chain(*lengths: int, nbytes: int = 10) -> list[Place]:
    """Return message ends of one conversation, the last one a prompt's and its reply's."""
    reasons = ["message_end"] * (len(lengths) - 2) + ["prompt_end", "message_end"]
    return [
        Place(i + 1, i or None, n, reason, nbytes) for i, (n, reason) in enumerate(zip(lengths, reasons, strict=True))
    ]


def dropped(places: list[Place], rows: list[RowCost], budget: int, *, rewindable: bool = False) -> list[int]:
    retention = Retention(places, rows, live=places[-1].id, rewindable=rewindable)
    ids = []
    while retention.nbytes > budget and (drop := retention.drop()):
        ids.append(drop.id)
    return ids


def test_what_is_kept_is_spread_over_the_past() -> None:
    places = chain(*range(100, 1700, 100))
    kept = sorted({place.id for place in places} - set(dropped(places, [], 60)))
    assert kept[-2:] == [15, 16]  # the newest prompt and its reply
    assert len(kept) == 6
    assert max(later - earlier for earlier, later in pairwise([0, *kept])) <= 4


def test_near_checkpoints_go_before_old_ones() -> None:
    assert dropped(chain(1000, 1010, 2000, 3000, 3100, 3200), [], 50) == [2]


def test_the_live_one_is_never_dropped() -> None:
    places = chain(100, 200, 300)
    assert sorted(dropped(places, [], 0)) == [1, 2]


def test_a_window_that_others_cover_frees_nothing_but_its_own_bytes() -> None:
    retention = Retention(chain(1000, 1010, 1020), [RowCost(1, 500)], live=3, rewindable=False)
    assert retention.nbytes == 30 + 520
    retention.drop()
    retention.drop()
    assert retention.nbytes == 10 + 500


def test_a_branch_that_nobody_is_on_is_dropped_before_the_one_in_use() -> None:
    stem, tip = Place(1, None, 100, "message_end", 10), Place(2, 1, 300, "prompt_end", 10)
    other, live = Place(3, 1, 300, "message_end", 10), Place(4, 2, 320, "message_end", 10)
    assert dropped([stem, tip, other, live], [RowCost(100, FULL)], 40_000, rewindable=True) == [3]


def test_rewindable_memory_keeps_the_rows_below_a_checkpoint() -> None:
    retention = Retention(chain(100, 200, 300), [RowCost(1, FULL)], live=3, rewindable=True)
    assert (retention.nbytes, retention.expected_tokens) == (330, 0)
    assert [retention.drop(), retention.drop()]
    assert retention.nbytes == 310
    assert retention.expected_tokens < 1  # the places are still there, only their hidden states are not


@st.composite
def trees(draw: st.DrawFn) -> list[Place]:
    places: list[Place] = []
    for id in range(1, draw(st.integers(1, 12)) + 1):
        parent = draw(st.sampled_from([None, *places]))
        n_tokens = (parent.n_tokens if parent else 0) + draw(st.integers(1, 9))
        reason = draw(st.sampled_from([None, "message_end", "prompt_end", "interval", "generation"]))
        nbytes = draw(st.sampled_from([0, 7])) if reason else 0
        places.append(Place(id, parent.id if parent else None, n_tokens, reason, nbytes))
    return places


@settings(max_examples=300, deadline=None)
@given(trees(), st.lists(st.sampled_from([2, 5, FULL]), max_size=2, unique=True), st.booleans(), st.data())
def test_bytes_and_expectation_are_what_a_recount_gives(
    places: list[Place], windows: list[int], rewindable: bool, data: st.DataObject
) -> None:
    live = data.draw(st.sampled_from(places)).id
    rows = [RowCost(3, window) for window in windows]
    retention = Retention(places, rows, live=live, rewindable=rewindable)
    assert retention.nbytes == counted(places, windows)
    while drop := retention.drop():
        assert drop.id != live
        assert drop.tokens >= 0
        places = [Place(p.id, p.parent, p.n_tokens, p.reason, 0 if p.id == drop.id else p.nbytes) for p in places]
        before, again = retention, Retention(places, rows, live=live, rewindable=rewindable)
        assert before.nbytes == again.nbytes == counted(places, windows)
        # a lost hidden state costs a token, which a recount no longer knows of
        assert again.expected_tokens <= before.expected_tokens + 1e-9
        if not rewindable:
            assert again.expected_tokens == pytest.approx(before.expected_tokens)


def counted(places: list[Place], windows: list[int]) -> int:
    """Count the kept checkpoints, and each row of their windows once."""
    by_id = {place.id: place for place in places}
    rows = set()
    for number, window in enumerate(windows):
        for place in places:
            at: Place | None = place if place.nbytes else None
            lowest = place.n_tokens - window
            while at is not None:
                above = by_id[at.parent] if at.parent else None
                start = above.n_tokens if above else 0
                rows |= {(number, at.id, position) for position in range(max(start, lowest), at.n_tokens)}
                at = above
    return sum(place.nbytes for place in places) + 3 * len(rows)
