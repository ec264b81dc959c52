"""Forged slot files: whatever a stranger writes into one, it is refused, damaged or as good as true; nothing breaks.

`--forged-files N` tries as many files, each with up to three changes anywhere.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.cli.client import Client
from engine.errors import DormouseError
from engine.sampling import SamplingParameters
from engine.session import TurnSettings
from engine.slot.file.inspect import inspect, render
from engine.slot.file.repair import open_repaired, repair
from engine.slot.file.schema import TABLES
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.verify import verify
from tests.forgery import IDS, VALUES, Change, Forger, changes
from tests.slot_samples import read_all

SETTINGS = TurnSettings(SamplingParameters(temperature=0), max_tokens=2)
PAYLOAD = re.compile(
    r"The .* rows .* are damaged."
    r"|Checkpoint .* is damaged."
    r"|Some of the stored (memory|context) .*"
    r"|SQLite finds: .* in (checkpoint|rows)\..*"
)
LONG = 10.0  # seconds after which a file counts as one that hangs


@dataclass
class Figures:
    """What became of the forged files."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in self.outcomes.most_common())
        return f"{self.outcomes.total():,} forged files: {counts}; the slowest took {self.slowest:.1f} s"


@pytest.fixture(scope="module", name="engine")
def _engine(tiny_llama: Path) -> Iterator[Client]:
    client = Client(kernels=None, n_threads=None, warn=lambda _: None)
    client.wait(client.session.load_model(tiny_llama))
    yield client
    client.session.close()


@pytest.fixture(scope="module", name="forger")
def _forger(engine: Client, tmp_path_factory: pytest.TempPathFactory) -> Forger:
    path = tmp_path_factory.mktemp("forged") / "genuine.slot"
    talk(engine, path, "Hello there, who are you?", "And what do you do all day?")
    with SlotFile.open(path) as file:
        assert all(file._raw.scan(table).records for table in TABLES), "each table has something to be forged"
    return Forger(path)


def talk(engine: Client, path: Path, *texts: str) -> None:
    """Open a file, say something, and have it answered and answered again."""
    opening = engine.session.open(path)
    try:
        engine.wait(opening)
        assert opening.conversation is not None
        for text in texts:
            engine.wait(engine.session.send(opening.conversation, text, settings=SETTINGS))
        engine.wait(engine.session.regenerate(opening.conversation, settings=SETTINGS))
    finally:
        if opening.conversation is not None:
            engine.wait(engine.session.close_conversation(opening.conversation))


def read(path: Path) -> str:
    """Read all of a file; return what became of it."""
    problems = verify(path)
    render(inspect(path))
    with SlotFile.open(path, read_only=True) as file:
        read_all(file)
        file.look_over()
    return "damaged" if problems else "accepted"


def use(engine: Client, path: Path, figures: Figures, *, talking: bool) -> None:
    """Do with a file what people do; nothing but an error of ours may come of it, and that soon."""
    begun = time.monotonic()
    refusal = "."
    try:
        outcome = read(path)
        if talking:
            talk(engine, path, "Go on.")
            left = [problem for problem in verify(path) if not PAYLOAD.fullmatch(problem)]
            assert left == [], "what was damaged is healed, but for what nobody has looked into yet"
            repair(path)
            assert verify(path) == []
        elif outcome == "damaged":
            open_repaired(path).close()
    except DormouseError as error:
        outcome, refusal = "refused", str(error)
    assert refusal.endswith(".")
    assert len(refusal) < 1_000
    assert "\n" not in refusal
    seconds = time.monotonic() - begun
    figures.outcomes[outcome] += 1
    figures.slowest = max(figures.slowest, seconds)
    figures.outcomes["hanging"] += seconds > LONG


def clear(folder: Path) -> None:
    for file in folder.glob("forged*"):
        file.unlink()


def forged(random_: random.Random, n: int) -> Iterator[list[Change]]:
    """Yield each change of the last records in turn if n allows it, then several changes anywhere."""
    all_changes = list(changes())
    random_.shuffle(all_changes)
    for change in all_changes[:n]:
        yield [change]
    tables = list(TABLES.values())
    for _ in range(n - len(all_changes)):
        several = []
        for _ in range(random_.randint(1, 3)):
            table = random_.choice(tables)
            column = random_.choice(["id", *table.columns, *table.payload])
            value = random_.choice(IDS if column == "id" else VALUES)
            several.append(Change(table.name, random_.randint(-3, 3), column, value))
        yield several


def test_what_strangers_write_breaks_nothing(
    engine: Client,
    forger: Forger,
    tmp_path: Path,
    n_forged_files: int,
    record_property: Callable[[str, object], None],
) -> None:
    figures = Figures()
    for number, several in enumerate(forged(random.Random(n_forged_files), n_forged_files)):
        path = tmp_path / "forged.slot"
        if not forger.forge(path, *several):
            continue
        try:
            use(engine, path, figures, talking=number % 5 == 0)
        except Exception as error:
            raise AssertionError("; ".join(map(str, several))) from error
        clear(tmp_path)
    record_property("figures", str(figures))
    assert figures.outcomes["hanging"] == 0
    assert figures.outcomes["accepted"] > 0
    assert figures.outcomes["damaged"] > 0


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_column_minds_what_it_says(engine: Client, forger: Forger, tmp_path: Path, table: str) -> None:
    """A value of no type that a column may have is seen, in each column of each table."""
    for column in (*TABLES[table].columns, *TABLES[table].payload):
        kind = TABLES[table].columns.get(column) or TABLES[table].payload[column]
        wrong = b"\xff\xff\xff" if kind.type is not bytes else "text"
        path = tmp_path / "forged.slot"
        assert forger.forge(path, Change(table, -1, column, wrong))
        use(engine, path, figures := Figures(), talking=False)
        assert figures.outcomes["accepted"] == 0, column
        clear(tmp_path)


def test_a_conversation_goes_on_where_the_place_at_which_it_was_left_is_gone(
    engine: Client, forger: Forger, tmp_path: Path
) -> None:
    path = tmp_path / "forged.slot"
    assert forger.forge(path, Change("message", -1, "id", 1 << 31))
    talk(engine, path, "Go on.")
    assert verify(path) == []
    with SlotFile.open(path) as file:
        assert [message.text for message in file.messages() if message.parent is None] == ["Hello there, who are you?"]
        assert not any(message.damaged for message in file.messages())
