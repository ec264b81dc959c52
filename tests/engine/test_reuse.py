"""What of a prompt is reused: the decision alone, over trees written by hand."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.slot.records import Checkpoint, Cursor, Segment, StoredRows
from engine.slot.reuse import Live, Reuse, ReusePlanner
from engine.slot.segments import ROOT, Run, SegmentTree

N_SWA = 4


@dataclass
class Tree:
    """A tree with its stored rows and checkpoints, grown by text: one letter is one token."""

    tree: SegmentTree = field(default_factory=SegmentTree)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    parts: tuple[str, ...] = ("attention",)
    stateless: bool = True

    def grow(self, text: str, *, after: Cursor = ROOT, stored: int | None = None) -> Cursor:
        """Add a segment; rows of its first `stored` ids (all by default) are stored for every part."""
        parent = None if after.segment is None else self.tree.segment(after.segment)
        segment = Segment.follow(len(self.tree) + 1, model=1, parent=parent, length=after.length, token_ids=ids(text))
        self.tree.add(segment)
        for i, part in enumerate(self.parts):
            if n := len(text) if stored is None else stored:
                self.tree.add_rows(StoredRows(10 * segment.id + i, segment.id, part, 0, n, nbytes=1))
        return Cursor(segment.id, len(text))

    def checkpoint(self, at: Cursor) -> None:
        assert at.segment
        id = len(self.checkpoints) + 1
        self.checkpoints.append(Checkpoint(id, at.segment, at.length, None, "interval", 0.0, False, nbytes=1))

    def plan(self, prompt: str, *, live: Cursor = ROOT, has_hidden: bool = False) -> Reuse:
        needed = {"attention": lambda n: 0, "sliding_window": lambda n: max(0, n - N_SWA)}
        planner = ReusePlanner(
            self.tree,
            self.checkpoints,
            needed_rows=lambda n: [(part, needed[part](n)) for part in self.parts],
            rewindable=self.parts == ("attention",),
            stateless=self.stateless,
        )
        return planner.plan(ids(prompt), Live(live, self.tree.n_tokens(live), has_hidden))


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def test_nothing_seen_nothing_reused() -> None:
    reuse = Tree().plan("abc")
    assert (reuse.n, reuse.reason, reuse.cursor) == (0, "new_chat", ROOT)


def test_what_is_added_is_all_that_is_evaluated() -> None:
    tree = Tree()
    tip = tree.grow("efgh", after=tree.grow("abcd"))
    reuse = tree.plan("abcdefghij", live=tip)
    assert (reuse.n, reuse.reason, reuse.cursor) == (8, "none", tip)


def test_rewindable_memory_returns_to_the_first_differing_token() -> None:
    tree = Tree()
    tree.grow("efgh", after=tree.grow("abcd"))
    reuse = tree.plan("abcdefXX")
    assert (reuse.n, reuse.reason) == (6, "diverged")


def test_the_same_prompt_evaluates_one_token_unless_its_hidden_state_is_kept() -> None:
    tree = Tree()
    tip = tree.grow("abcd")
    assert tree.plan("abcd").n == 3
    assert tree.plan("abcd", live=tip, has_hidden=True).n == 4
    tree.checkpoint(tip)
    reuse = tree.plan("abcd")
    assert (reuse.n, reuse.reason, reuse.checkpoint) == (4, "none", tree.checkpoints[0])


def test_memory_with_a_state_returns_to_the_newest_checkpoint_before_the_difference() -> None:
    tree = Tree(parts=("attention",), stateless=False)
    one = tree.grow("abcd")
    two = tree.grow("efgh", after=one)
    tip = tree.grow("ijkl", after=two)
    for cursor in (one, two, tip):
        tree.checkpoint(cursor)
    reuse = tree.plan("abcdefghiX", live=tip, has_hidden=True)
    assert (reuse.n, reuse.n_common, reuse.reason, reuse.cursor) == (8, 9, "no_checkpoint", two)
    assert tree.plan("abcdefghijkl", live=tip, has_hidden=True).n == 12


def test_a_sliding_window_returns_to_where_a_whole_window_is_stored() -> None:
    tree = Tree(parts=("sliding_window",))
    tip = tree.grow("efghijkl", after=tree.grow("abcd"), stored=5)
    assert tree.plan("abcdefghijkl!", live=tip, has_hidden=True).n == 12
    assert tree.plan("abcdefghijkX").n == 9
    assert tree.plan("abcdefgX").n == 7
    assert tree.plan("abcX").n == 3
    holey = Tree(parts=("sliding_window",))
    tip = holey.grow("ijklmn", after=holey.grow("abcdefgh", stored=2))
    assert holey.plan("abcdefghijklX").n == 12
    assert holey.plan("abcdefghijkX").n == 2


def test_a_checkpoint_whose_rows_are_gone_is_passed_over() -> None:
    tree = Tree(parts=("sliding_window",), stateless=False)
    one = tree.grow("abcdef")
    two = tree.grow("ghijkl", after=one, stored=1)
    tree.checkpoint(one)
    tree.checkpoint(two)
    assert tree.plan("abcdefghijklm").cursor == one


def test_rewindable_memory_goes_as_far_as_rows_are_stored_or_live() -> None:
    tree = Tree()
    one = tree.grow("abcd")
    two = tree.grow("efgh", after=one, stored=2)
    assert tree.plan("abcdefghij").n == 6
    assert tree.plan("abcdefghij", live=two).n == 8


def test_a_branch_is_found_again_wherever_it_forked() -> None:
    tree = Tree()
    one = tree.grow("abcdefgh")
    fork = tree.grow("XY", after=Cursor(one.segment, 3))
    leaf = tree.grow("Z", after=fork)
    reuse = tree.plan("abcXYZ!", live=one)
    assert (reuse.n, reuse.cursor) == (6, leaf)
    reuse = tree.plan("abcdefgh!", live=leaf)
    assert (reuse.n, reuse.cursor) == (8, one)


def test_of_equal_branches_the_live_one_is_taken_then_the_newest() -> None:
    tree = Tree()
    stem = tree.grow("ab")
    old = tree.grow("cd", after=stem)
    new = tree.grow("cd", after=stem)
    assert tree.plan("abcdX", live=old).cursor == old
    assert tree.plan("abcdX", live=new).cursor == new
    assert tree.plan("abcdX").cursor == new


@pytest.mark.parametrize("parts", [("attention",), ("attention", "sliding_window")])
def test_a_prompt_shorter_than_what_was_seen(parts: tuple[str, ...]) -> None:
    tree = Tree(parts=parts)
    one = tree.grow("abcd")
    tree.checkpoint(one)
    tip = tree.grow("efgh", after=one)
    tree.checkpoint(tip)
    reuse = tree.plan("abcd", live=tip, has_hidden=True)
    assert (reuse.n, reuse.reason) == (4, "none")


def test_gaps_are_found_across_segments() -> None:
    tree = Tree()
    one = tree.grow("abcd", stored=2)
    two = tree.grow("efgh", after=one)
    path = tree.tree.path(two)
    assert tree.tree.gaps(path, "attention", 0, 8) == [(2, 4)]
    assert tree.tree.gaps(path, "attention", 4, 8) == []
    assert tree.tree.gaps(path, "other", 1, 7) == [(1, 4), (4, 7)]


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the runs that are looked at for gaps."""
    looks: list[int] = []
    look = SegmentTree.gaps

    def gaps(tree: SegmentTree, path: list[Run], part: str, lo: int, hi: int) -> list[tuple[int, int]]:
        looks.append(len(path))
        return look(tree, path, part, lo, hi)

    monkeypatch.setattr(SegmentTree, "gaps", gaps)
    return looks


def test_many_branches_that_look_alike_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count_looks(monkeypatch)
    tree = Tree(parts=("attention", "sliding_window"))
    for _ in range(2_000):
        tree.checkpoint(tree.grow("ab", stored=1))
    tree.checkpoint(best := tree.grow("abcd"))
    assert tree.plan("abcdef").cursor == best
    assert sum(looks) < 1_000


def test_many_gaps_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count_looks(monkeypatch)
    tree, tip = Tree(parts=("attention", "sliding_window")), ROOT
    for _ in range(500):
        tip = tree.grow("ab", after=tip, stored=1)
        tree.checkpoint(tip)
    assert tree.plan("ab" * 500).n == 1
    assert len(looks) == 2
