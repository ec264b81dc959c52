"""A slot file that is cut, zeroed or flipped anywhere: never a foreign exception, never wrong text or state."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DormouseError
from engine.slot.file.inspect import inspect, render
from engine.slot.file.schema import PAGE_SIZE
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.slot_samples import Contents, read_all, write_conversation

INTERIOR, LEAF = 0x05, 0x0D  # kinds of pages of a table, https://www.sqlite.org/fileformat2.html#b_tree_pages


class Original:
    """The undamaged file; no dataclass, because hypothesis would print all of it."""

    def __init__(self, data: bytes, contents: Contents) -> None:
        self.data = data
        self.contents = contents


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    path = tmp_path_factory.mktemp("fuzz") / "whole.slot"
    write_conversation(path)
    with SlotFile.open(path) as slot_file:
        contents = read_all(slot_file)
        assert (slot_file.damage, slot_file.state_damage) == ([], [])
        assert len(contents.state) == 2 * (4 + 8 + 4)
    assert verify(path) == []
    return Original(path.read_bytes(), contents)


def check(slot_file: SlotFile, whole: Contents) -> None:
    """Compare what is read with the original: the same, or said to be damaged."""
    found = read_all(slot_file)
    for message in found.messages.values():
        assert message.damaged or message == whole.messages[message.id]
    assert found.leaf in (None, whole.leaf)
    if not slot_file.damage:
        assert (found.messages, found.leaf) == (whole.messages, whole.leaf)
    assert found.models.items() <= whole.models.items()
    assert all(whole.state[key] == value for key, value in found.state.items())
    assert all(other in whole.others for other in found.others)
    if not slot_file.state_damage:
        assert (found.models, found.state, found.others) == (whole.models, whole.state, whole.others)


def check_file(data: bytes, whole: Contents) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.slot"
        path.write_bytes(data)
        try:
            verify(path)
            render(inspect(path))
            with SlotFile.open(path) as slot_file:
                check(slot_file, whole)
                is_damaged = bool(slot_file.damage or slot_file.state_damage)
                slot_file.save_copy(path.with_name("copy.slot"))
                messages = slot_file.messages()
            with SlotFile.open(path.with_name("copy.slot")) as copy:
                assert copy.writable
                assert copy.messages() == messages
                if not is_damaged:
                    check(copy, whole)
        except DormouseError as error:
            sentence = str(error)
        else:
            return
    assert sentence.endswith(".")
    assert "\n" not in sentence


def flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


places = st.floats(0, 1, exclude_max=True)


@settings(deadline=None, max_examples=100)
@given(place=places)
def test_cut_anywhere(original: Original, place: float) -> None:
    check_file(original.data[: int(place * len(original.data))], original.contents)


@settings(deadline=None, max_examples=100)
@given(place=places, length=st.integers(1, 40_000))
def test_zeroed_anywhere(original: Original, place: float, length: int) -> None:
    start = int(place * len(original.data))
    end = min(start + length, len(original.data))
    check_file(original.data[:start] + bytes(end - start) + original.data[end:], original.contents)


@settings(deadline=None, max_examples=200)
@given(place=places)
def test_flipped_bit_anywhere(original: Original, place: float) -> None:
    check_file(flip(original.data, int(place * len(original.data) * 8)), original.contents)


@settings(deadline=None, max_examples=60)
@given(bit=st.integers(0, 8 * 100 - 1))
def test_flipped_bit_in_the_head(original: Original, bit: int) -> None:
    check_file(flip(original.data, bit), original.contents)


@settings(deadline=None, max_examples=60)
@given(page=places, bit=st.integers(0, 8 * 64 - 1))
def test_flipped_bit_in_the_head_of_a_page(original: Original, page: float, bit: int) -> None:
    start = int(page * len(original.data)) // PAGE_SIZE * PAGE_SIZE
    check_file(flip(original.data, 8 * start + bit), original.contents)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_pages_linked_anew(original: Original, data: st.DataObject) -> None:
    """Pages of a tree that lead to others, to none, or back to themselves: reading has an end."""
    places = list(links(original.data))
    damaged = bytearray(original.data)
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        page = data.draw(st.integers(0, len(original.data) // PAGE_SIZE + 1) | st.just(place // PAGE_SIZE + 1))
        damaged[place : place + 4] = page.to_bytes(4, "big")
    check_file(bytes(damaged), original.contents)


def links(data: bytes) -> Iterator[int]:
    """Yield where the pages of trees name other pages: children, and where a value that is large goes on."""
    for start in range(0, len(data), PAGE_SIZE):
        head = start + 100 * (start == 0)
        n_cells = int.from_bytes(data[head + 3 : head + 5], "big")
        if data[head] == INTERIOR:
            yield head + 8
            cells = [int.from_bytes(data[at : at + 2], "big") for at in range(head + 12, head + 12 + 2 * n_cells, 2)]
            yield from (start + cell for cell in cells)
        elif data[head] != LEAF:  # of a large value, or a map of pages
            yield start


def test_undamaged(original: Original) -> None:
    check_file(original.data, original.contents)
