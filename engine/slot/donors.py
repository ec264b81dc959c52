"""Conversations that share their beginning: what one of them has read, another one need not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from engine.arrays import TokenIds
from engine.errors import DormouseError, SlotFileError
from engine.slot.archive import Archive
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import Store
from engine.slot.prefix_index import PrefixIndex, read_steps, state_key
from engine.slot.records import ModelIdentity
from engine.slot.slot import Slot

_LEAST = 64  # tokens that a donation must save
_N_CANDIDATES = 3
_PATIENCE = 2.0  # seconds for a file that others use as well

_Stamp: TypeAlias = tuple[int, int] | None


class Donors:
    """The slot files of a folder and those that are open, as givers of rows and checkpoints.

    For one thread only, except `forget`.
    """

    def __init__(self, folder: Path | None, *, index: Path | None) -> None:
        """Look for donors in `folder`, if there is one; what is found out about them is kept in the file `index`."""
        self._folder = folder
        self._index = PrefixIndex(index)
        self._refused: dict[Path, _Stamp] = {}  # files whose marks did not hold, as they were then

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def forget(self, path: Path) -> None:
        """Know nothing any more of a slot file that was deleted. May be called from any thread, and waits for none."""
        self._index.forget(path)

    def supply(
        self,
        slot: Slot,
        prompt: TokenIds,
        *,
        model: ModelIdentity,
        own: Path | None,
        open_files: Mapping[Path, Store],
        note: Callable[[Exception], None],
    ) -> str | None:
        """Let the slot have what another conversation knows of `prompt` (ids); return the name of its slot file.

        None is returned, and nothing done, where nobody knows much more than the slot itself. `open_files` are those
        that this process has open, temporary conversations not among them. A file that can't be used is passed over;
        `note` is told of failures that nobody foresaw. What is raised came in the middle of a change of the slot, which
        is of no use then.
        """
        n_known = slot.plan(prompt).n
        if len(prompt) - n_known < _LEAST:
            return None
        others = {path: store for path, store in open_files.items() if path != own}
        if self._folder is not None:
            with _passing_over(note):
                self._index.update(self._folder, but=open_files)
        for path, store in others.items():
            with _passing_over(note):
                self._index.put(path, store.call(read_steps).result(_PATIENCE))
        candidates: list[Path] = []
        with _passing_over(note):
            longest = self._index.longest(model, prompt)
            candidates = [path for path in longest if path != own and self._refused.get(path) != _stamp(path)]
        with ExitStack() as opened:
            offers = []
            for path in candidates[:_N_CANDIDATES]:
                with _passing_over(note):
                    stamp = _stamp(path)
                    archive = _open(path, others.get(path), model, opened)
                    offers.append((slot.plan(prompt, archive), archive, path, stamp))
            for reuse, archive, path, stamp in sorted(offers, key=lambda offer: offer[0].n, reverse=True):
                if reuse.n - n_known < _LEAST:
                    break
                if slot.adopt(archive, reuse, name=path.name):
                    return path.name
                self._refused[path] = stamp
        return None


@contextmanager
def _passing_over(note: Callable[[Exception], None]) -> Iterator[None]:
    """Go on after what is done inside fails; files that are busy, damaged or slow are nothing to note."""
    try:
        yield
    except (DormouseError, TimeoutError):
        pass
    except Exception as error:
        note(error)


def _open(path: Path, store: Store | None, model: ModelIdentity, opened: ExitStack) -> Archive:
    """Return the state that a slot file has of a model, as far as it has marks."""
    if store is None:
        store = Store(lambda: SlotFile.open(path, read_only=True, wait=False), on_error=_ignore)
        opened.callback(_let_go, store)
    models = store.call(SlotFile.models).result(_PATIENCE)
    id = next((other.id for other in models if state_key(other) == state_key(model)), 0)
    return Archive(store, id, marked_only=True)


def _stamp(path: Path) -> _Stamp:
    """Return what changes with a file; None where it can't be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _let_go(store: Store) -> None:
    try:
        store.close(_PATIENCE)
    except SlotFileError:  # nothing was written, so nothing is lost
        store.abandon()


def _ignore(_: DormouseError) -> None:
    """What goes wrong when a file that was only read is closed concerns nobody."""
