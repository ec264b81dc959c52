"""What the person chose, kept in one small JSON file.

Each setting is declared once, as a field of `Settings`; defaults, validation and the file come from that. The file
holds only what differs from the defaults, so that better defaults reach everyone who did not choose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

from engine.errors import DormouseError
from engine.kernels import KERNELS
from engine.kernels.kv_types import KV_TYPES
from engine.paths import config_folder
from engine.private_file import UnfitFileError, read_file, write_private
from engine.runtime import DEFAULT_BUDGET, DEFAULT_CHECKPOINT_INTERVAL, DEFAULT_N_CTX
from engine.sampling import SamplingParameters

_FILE_NAME = "settings.json"
_RECENT_LENGTH = 10
_MOST_BYTES = 1 << 20
_SAMPLING = SamplingParameters()


@dataclass(frozen=True)
class Range:
    """The numbers from `lowest` to `highest`, both included."""

    lowest: float
    highest: float

    def __contains__(self, value: float) -> bool:
        return self.lowest <= value <= self.highest


@dataclass(frozen=True)
class Declaration:
    """What is known of a setting. `types` are those of its values; `allowed` is None where any value is.

    The dialog shows it under the heading `group`; None for what the window keeps by itself.
    """

    name: str
    types: tuple[type, ...]
    default: Any
    label: str
    allowed: Range | tuple[str, ...] | None = None
    group: str | None = None
    hint: str = ""

    def accepts(self, value: Any) -> bool:
        """Tell whether a value, as JSON gives it, is of the declared type and allowed."""
        if type(value) not in self.types:  # isinstance would take True for a number
            return False
        if isinstance(value, list):
            return all(isinstance(item, str) for item in value)
        return value is None or self.allowed is None or value in self.allowed


def _setting(default: Any, label: str, allowed: Range | tuple[str, ...] | None = None, **about: str) -> Any:
    return field(default=default, metadata={"label": label, "allowed": allowed, **about})


@dataclass
class Settings:
    """The settings as attributes; None stands for none yet, or for what the program thinks best."""

    last_model: str | None = _setting(None, "Model used last")
    last_conversation: str | None = _setting(None, "Conversation open last")
    window_geometry: str | None = _setting(None, "Place and size of the window")
    zoom: int = _setting(100, "Size of the text in percent", Range(50, 300))
    show_plot: bool = _setting(True, "Show the prefill plot")
    show_library: bool = _setting(True, "Show the list of conversations")
    recent: list[str] = field(default_factory=list, metadata={"label": "Files opened last"})
    temperature: float = _setting(
        _SAMPLING.temperature, "Temperature", Range(0, 2), group="Replies", hint="0 takes the likeliest token always."
    )
    top_k: int = _setting(_SAMPLING.top_k, "Top-k", Range(0, 1000), group="Replies", hint="0 switches it off.")
    top_p: float = _setting(_SAMPLING.top_p, "Top-p", Range(0.01, 1), group="Replies", hint="1 switches it off.")
    max_tokens: int | None = _setting(
        None, "Tokens of a reply", Range(1, 1 << 24), group="Replies", hint="At most; automatic: as many as fit."
    )
    system_prompt: str = _setting("", "System message", group="Replies", hint="Of conversations that begin now.")
    n_ctx: int | None = _setting(
        None,
        "Tokens of context",
        Range(1, 1 << 24),
        group="Model",
        hint=f"Automatic: as many as the model was made for, up to {DEFAULT_N_CTX:,}.",
    )
    kv_type: str = _setting(
        "f16", "Type of the K/V rows", tuple(KV_TYPES), group="Model", hint="q8_0 and q4_0 take less memory than f16."
    )
    kernels: str | None = _setting(
        None, "Kernels", KERNELS, group="Model", hint="From the next start on; automatic: the fastest that work here."
    )
    n_threads: int | None = _setting(
        None, "Threads", Range(1, 1024), group="Model", hint="From the next start on; automatic: one for each core."
    )
    checkpoint_interval: int = _setting(
        DEFAULT_CHECKPOINT_INTERVAL,
        "Tokens between checkpoints",
        Range(64, 1 << 24),
        group="Conversations' state",
        hint="Within a long message, at least.",
    )
    memory_budget: int = _setting(
        DEFAULT_BUDGET >> 20,
        "MiB of memory",
        Range(0, 1 << 24),
        group="Conversations' state",
        hint="For the conversations beside the shown one.",
    )
    disk_budget: int = _setting(
        DEFAULT_BUDGET >> 20,
        "MiB on disk",
        Range(0, 1 << 24),
        group="Conversations' state",
        hint="For a model's state in one conversation's file.",
    )

    def __post_init__(self) -> None:
        self._path: Path | None = None
        self._unknown: dict[str, Any] = {}

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read the settings from `path`, by default the user's file; what is missing or wrong there is default.

        What is no file, or no JSON object, is moved aside, to the same name with `.damaged`. Raises DormouseError if
        the file is there but can't be read.
        """
        path = path or config_folder() / _FILE_NAME
        settings = cls()
        settings._path = path
        values = _read(path)
        for declaration in DECLARATIONS:
            value = values.pop(declaration.name, None)
            if float in declaration.types and type(value) is int:
                value = float(value)
            if declaration.accepts(value):
                setattr(settings, declaration.name, value)
        settings._unknown = values
        return settings

    def save(self) -> None:
        """Write what differs from the defaults, and what another version of Dormouse left in the file.

        Raises DormouseError if that is not possible; the file is then as it was.
        """
        path = self._path or config_folder() / _FILE_NAME
        values = {declaration.name: getattr(self, declaration.name) for declaration in DECLARATIONS}
        changed = {d.name: values[d.name] for d in DECLARATIONS if values[d.name] != d.default}
        try:
            write_private(path, json.dumps(self._unknown | changed, indent=2) + "\n")
        except OSError as error:
            raise DormouseError(f"The settings can't be saved in {path}: {error.strerror}.") from error

    def add_recent(self, path: str) -> None:
        """Put a file first among those opened last."""
        others = [other for other in self.recent if other != path]
        self.recent = [path, *others][:_RECENT_LENGTH]


def _declare() -> tuple[Declaration, ...]:
    hints = get_type_hints(Settings)
    defaults = Settings()
    return tuple(
        Declaration(f.name, _types(hints[f.name]), getattr(defaults, f.name), **f.metadata) for f in fields(Settings)
    )


def _types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is list:
        return (list,)
    return get_args(hint) or (hint,)


DECLARATIONS = _declare()


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_file(path, limit=_MOST_BYTES))
        if isinstance(values, dict):
            return values
    except FileNotFoundError:
        return {}
    except UnfitFileError:  # what only stands in its place is not looked into
        pass
    except OSError as error:
        raise DormouseError(f"The settings in {path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        pass
    path.replace(path.with_name(f"{path.name}.damaged"))
    return {}
