"""Turns at the edges: of a ubatch, of what is stored, of the context, and replies of nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ContextFullError, DormouseError
from engine.generate import (
    Cancelled,
    Ended,
    Limits,
    MessageEnd,
    Prefilled,
    Prompt,
    Reused,
    Sampled,
    check_fits,
    decode,
    interval_stops,
    prefill,
)
from engine.kernels import load_kernels
from engine.runtime import EngineSettings, Runtime
from engine.sampling import Sampler, SamplingParameters
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.next_tokens import NextTokens
from engine.slot.slot import Slot
from tests.slot_samples import sample_model
from tests.toy_model import FAMILIES, ToyModel

N_UBATCH = 16
LIMITS = Limits(n_ctx=1000, n_ubatch=N_UBATCH, max_tokens=5, checkpoint_interval=20)
GREEDY = Sampler(SamplingParameters(temperature=0))


@pytest.fixture(scope="module", name="real")
def _real(smollm2: Path, gemma3: Path) -> Iterator[dict[str, Any]]:
    kernels = load_kernels()
    paths = {"smollm2": smollm2, "gemma3": gemma3}
    yield {name: Runtime.load(path, kernels, EngineSettings()).model for name, path in paths.items()}
    kernels.close()


@pytest.fixture(params=[*FAMILIES, "smollm2", "gemma3"], name="model")
def _model(request: pytest.FixtureRequest) -> Any:
    if request.param in FAMILIES:
        return ToyModel(request.param)
    return request.getfixturevalue("real")[request.param]


@pytest.fixture(name="open_slot")
def _open_slot(model: Any, tmp_path: Path) -> Iterator[Callable[[], Slot]]:
    """Open the slot that sleeps in one file; each time anew."""
    errors: list[DormouseError] = []
    store = Store(lambda: SlotFile.create(tmp_path / "a.slot"), on_error=errors.append)
    yield lambda: Slot(model, Archive(store, store.call(SlotFile.put_model, sample_model("m")).result().id))
    store.close()
    assert errors == []


def prompt_of(n: int, *, ends: tuple[int, ...] = ()) -> Prompt:
    """Return the first n of always the same tokens; messages end at `ends` and at n."""
    ids = np.random.default_rng(1).integers(3, 50, 400).astype(np.int32)[:n]
    return Prompt(ids, tuple(MessageEnd(end, i, "prompt_end") for i, end in enumerate((*ends, n), 1)))


def read(slot: Slot, prompt: Prompt, limits: Limits = LIMITS) -> tuple[Reused, list[int]]:
    """Prefill; return what was known, and how long the slot was after each step."""
    reused, *steps = prefill(slot, prompt, limits=limits, check=lambda: None)
    assert isinstance(reused, Reused)
    return reused, [step.n for step in steps if isinstance(step, Prefilled)]


def write(model: Any, slot: Slot, *, end_ids: frozenset[int] = frozenset(), limits: Limits = LIMITS) -> list[Any]:
    return list(decode(model, slot, GREEDY, end_ids=end_ids, limits=limits, check=lambda: None))


def check_hidden(model: Any, slot: Slot, ids: np.ndarray) -> None:
    """Compare with an evaluation of the same tokens from the start."""
    memory = model.new_memory()
    for start in range(0, len(ids), N_UBATCH):
        hidden = model.forward(ids[start : start + N_UBATCH], memory)
    assert slot.hidden is not None
    if isinstance(model, ToyModel):
        np.testing.assert_allclose(slot.hidden, hidden[-1:], atol=1e-5)
    expected = NextTokens.of(model.logits(hidden[-1:])[0], kernels="other ubatches")
    assert expected.agrees(model.logits(slot.hidden)[0], kernels="")


@pytest.mark.parametrize("n", [1, N_UBATCH - 1, N_UBATCH, N_UBATCH + 1, 2 * N_UBATCH])
def test_prompts_around_the_length_of_a_ubatch(model: Any, open_slot: Callable[[], Slot], n: int) -> None:
    slot, prompt = open_slot(), prompt_of(n)
    reused, steps = read(slot, prompt)
    assert reused.n == 0
    assert steps == [*range(N_UBATCH, n, N_UBATCH), n]
    check_hidden(model, slot, prompt.token_ids)
    first = write(model, slot)
    for _ in range(2):
        reused, steps = read(slot, prompt)
        assert (reused.n, steps, reused.reason) == (n, [], "none")  # the checkpoint at the prompt's end
        assert write(model, slot) == first
        slot = open_slot()


def test_a_checkpoint_exactly_where_the_next_prompt_differs(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot, end = open_slot(), 2 * N_UBATCH
    read(slot, prompt_of(3 * N_UBATCH + 1, ends=(end,)))
    ids = prompt_of(end).token_ids
    other = Prompt(np.concatenate([ids, [1, 2, 1]]).astype(np.int32), (MessageEnd(end + 3, 9, "prompt_end"),))
    for steps in ([end + 3], []):
        reused, read_to = read(slot, other)
        assert (reused.n, read_to) == (end + 3 - 3 * len(steps), steps)
        check_hidden(model, slot, other.token_ids)
        slot = open_slot()


def test_a_prompt_shorter_than_what_is_stored(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot = open_slot()
    read(slot, prompt_of(100, ends=(30,)))
    for n, at_least in ((30, 30), (29, 0), (45, 30)):
        reused, _ = read(slot, prompt_of(n))
        assert at_least <= reused.n <= n
        check_hidden(model, slot, prompt_of(n).token_ids)
        slot = open_slot()


def test_an_empty_reply_leaves_the_prompt_as_it_is(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot, prompt = open_slot(), prompt_of(20)
    read(slot, prompt)
    (token, *_) = write(model, slot, limits=Limits(n_ctx=1000, max_tokens=1))
    assert isinstance(token, Sampled)
    (ended,) = write(model, slot, end_ids=frozenset([token.token_id]))
    assert isinstance(ended, Ended)
    assert (ended.finish_reason, slot.n_tokens) == ("stop", 20)
    assert ended.logits_xxh3 == token.logits_xxh3
    slot.checkpoint(message=1, reason="message_end")
    assert read(open_slot(), prompt_of(25))[0].n == 20


def test_a_context_that_is_full(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot, limits = open_slot(), Limits(n_ctx=20, n_ubatch=N_UBATCH)
    with pytest.raises(ContextFullError, match="20 tokens long"):
        check_fits(20, limits.n_ctx)
    check_fits(19, limits.n_ctx)
    read(slot, prompt_of(19))
    assert [type(step) for step in write(model, slot, limits=limits)] == [Sampled, Ended]
    assert slot.n_tokens == 19
    read(slot := open_slot(), prompt_of(17))
    *tokens, ended = write(model, slot, limits=limits)
    assert (len(tokens), ended.finish_reason, slot.n_tokens) == (3, "length", 19)


def test_cancelling_between_ubatches_keeps_what_was_read(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot, prompt = open_slot(), prompt_of(100)

    def check() -> None:
        if slot.n_tokens > 3 * N_UBATCH:
            raise Cancelled

    with pytest.raises(Cancelled):
        list(prefill(slot, prompt, limits=LIMITS, check=check))
    slot.checkpoint(message=None, reason="cancelled")
    for _ in range(2):
        assert read(slot, prompt)[0].n >= 3 * N_UBATCH
        check_hidden(model, slot, prompt.token_ids)
        slot = open_slot()


def test_long_messages_and_replies_have_checkpoints_within(model: Any, open_slot: Callable[[], Slot]) -> None:
    slot = open_slot()
    read(slot, prompt_of(150))
    write(model, slot, limits=Limits(n_ctx=1000, max_tokens=50, checkpoint_interval=20))
    slot.checkpoint(message=1, reason="message_end")
    archive = slot._archive
    lengths = {archive.tree.n_tokens(c.cursor): c.reason for c in archive.checkpoints.values()}
    within = {64: "interval", 96: "interval", 128: "interval", 144: "interval", 170: "generation", 190: "generation"}
    assert lengths == {150: "prompt_end", 199: "message_end"} | ({} if slot.memory.rewindable else within)


def test_intervals_grow_with_the_distance_from_the_end() -> None:
    limits = Limits(n_ctx=1 << 20, n_ubatch=512, checkpoint_interval=512)
    stops = sorted(interval_stops(100, 100 + 20_000, limits))
    assert [(stop - 100) % 512 for stop in stops] == [0] * len(stops)
    assert [20_100 - stop for stop in stops] == [16416, 8224, 4128, 2080, 1056, 544, 32]
    assert interval_stops(0, 512, limits) == interval_stops(0, 100, limits) == set()
    assert interval_stops(0, 513, limits) == {512}
