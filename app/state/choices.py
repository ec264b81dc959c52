"""What the person chose, in the words of the engine, and what is kept for the next start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from app.settings import Settings
from app.state.reports import Reports
from engine.errors import DormouseError
from engine.runtime import EngineSettings
from engine.sampling import SamplingParameters
from engine.session import TurnSettings


class Choices:
    """Reads and changes the settings; that they can't be saved is told and stops nothing."""

    def __init__(self, settings: Settings, reports: Reports) -> None:
        self._settings = settings
        self._reports = reports

    def engine_settings(self) -> EngineSettings:
        """Return how a model is to be loaded."""
        s = self._settings
        return EngineSettings(
            n_ctx=s.n_ctx,
            kv_type=s.kv_type,
            checkpoint_interval=s.checkpoint_interval,
            memory_budget=s.memory_budget << 20,
            disk_budget=s.disk_budget << 20,
        )

    def turn_settings(self) -> TurnSettings:
        """Return how a reply is to be written."""
        s = self._settings
        return TurnSettings(SamplingParameters(s.temperature, s.top_k, s.top_p), s.max_tokens)

    def change(self, values: Mapping[str, Any]) -> bool:
        """Take and save what the person set; return whether a model is loaded otherwise from now on."""
        before = self.engine_settings()
        for name, value in values.items():
            setattr(self._settings, name, value)
        self._save()
        return self.engine_settings() != before

    def remember(self, path: Path | None) -> None:
        """Keep which conversation is shown for the next start, also for one after a crash."""
        if path is None:
            self._settings.last_conversation = None
        elif self._settings.last_conversation != str(path):
            self._settings.last_conversation = str(path)
            self._settings.add_recent(str(path))
            self._save()

    def forget_last(self, kind: Literal["conversation", "model"]) -> None:
        """Have the next start open no conversation, or load no model, by itself."""
        if kind == "model":
            self._settings.last_model = None
        else:
            self._settings.last_conversation = None
        self._save()

    def forget(self, path: Path) -> None:
        """Offer a file no longer that was deleted."""
        self._settings.recent = [recent for recent in self._settings.recent if recent != str(path)]
        if self._settings.last_conversation == str(path):
            self._settings.last_conversation = None
        self._save()

    def _save(self) -> None:
        try:
            self._settings.save()
        except DormouseError as error:
            self._reports.tell(str(error))
