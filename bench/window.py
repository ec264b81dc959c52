"""Measure how long the window keeps its person waiting.

    python -m bench.window MODEL.gguf [--json]

Prints the worst gap of the event loop while the model is loaded, while 1,500 tokens are read and while 2,000 stream in;
how soon a conversation of 4,000 tokens can be read and answered in; and how long closing in the middle of a prefill
takes. The user's own conversations and settings are left alone. With `--json`, `gap_ms` is the worst gap while the
model loads, reads and writes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtWidgets import QApplication

from app.library import Library
from app.main import SWITCH_INTERVAL
from app.settings import Settings
from app.state.app_state import AppState
from app.state.starter_state import StarterState
from app.window import Window

_N_READ = 1500
_N_STREAM = 2000
_N_OPEN = 4000
_PAUSE = 2.0  # seconds, for what goes on beside
_LOADING, _READING, _WRITING = "loading the model", f"reading {_N_READ:,} tokens", "writing 64 tokens"
_STREAMING = f"streaming {_N_STREAM:,} tokens of Markdown"
_WORKING = (_LOADING, _READING, _WRITING, _STREAMING)


@dataclass
class Findings:
    """What was measured; the names are those of `--json`."""

    gaps_ms: dict[str, float] = field(default_factory=dict)  # worst gap of the event loop, by what went on
    n_opened: int = 0  # tokens of the conversation that was opened
    visible_s: float = 0.0
    awake_s: float = 0.0
    closing_s: float = 0.0

    @property
    def gap_ms(self) -> float:
        """The worst gap of the event loop while the model loads, reads and writes."""
        return max(self.gaps_ms[what] for what in _WORKING)


class Measurement(QObject):
    """A timer that should fire every millisecond, and the script that is carried out meanwhile."""

    def __init__(self, window: Window, model: Path) -> None:
        super().__init__()
        self.findings = Findings()
        self._window = window
        self._model = model
        self._script = self._steps()
        self._condition: Callable[[], object] = lambda: True
        self._worst = 0.0
        self._last = time.perf_counter()
        self._timer = QTimer(self)
        self._timer.setInterval(1)
        self._timer.timeout.connect(self._tick)
        self._timer.start()

    @Slot()
    def _tick(self) -> None:
        now = time.perf_counter()
        self._worst, self._last = max(self._worst, now - self._last), now
        if self._condition():
            try:
                self._condition = next(self._script)
            except StopIteration:
                self._timer.stop()
                QApplication.quit()

    def _steps(self) -> Iterator[Callable[[], object]]:
        state = self._window.state
        state.settings.max_tokens = 64
        yield _after(_PAUSE)
        self._note("showing the window")
        state.load_model(self._model)
        yield lambda: state.model.model is not None
        self._note(_LOADING)
        state.send("Read this. " + "word " * _N_READ)
        # a reply may be over before anybody looks
        yield lambda: state.conversation.decode is not None or not state.conversation.is_busy
        self._note(_READING)
        yield lambda: not state.conversation.is_busy
        self._note(_WRITING)
        for i in range(_N_STREAM):
            self._stream(i)
            if i % 4 == 3:  # about 800 tokens a second
                yield _after(0.005)
        self._note(_STREAMING)
        yield from self._reopen()
        state.send("And that. " + "word " * _N_READ)
        yield lambda: state.conversation.prefill is not None
        started = time.perf_counter()
        self._window.close()
        self.findings.closing_s = time.perf_counter() - started

    def _reopen(self) -> Iterator[Callable[[], object]]:
        state = self._window.state
        state.send("Read that as well. " + "word " * (_N_OPEN - state.conversation.n_tokens))
        yield lambda: not state.conversation.is_busy
        path, n = state.conversation.path, state.conversation.n_tokens
        self.findings.n_opened = n
        assert path is not None
        state.new_conversation()
        yield _after(_PAUSE)
        self._note(f"reading on to {n:,} tokens")
        started = time.perf_counter()
        state.open_conversation(path)
        yield lambda: self._window.chat.transcript.views
        self.findings.visible_s = time.perf_counter() - started
        yield lambda: state.conversation.woken is not None
        self.findings.awake_s = time.perf_counter() - started
        self._note("opening it")

    def _stream(self, i: int) -> None:
        words = ("\n\n```python\n", "x = ", f"{i}\n", "```\n\n", "Some ", "**bold** ", "words ", "- ", "and more, ")
        view = self._window.chat.transcript.views[-1]
        view.grow(words[i % len(words)])

    def _note(self, what: str) -> None:
        self.findings.gaps_ms[what] = 1000 * self._worst
        self._worst = 0.0


def _render(findings: Findings) -> str:
    f = findings
    return "\n".join(
        [
            *(f"{what}: worst gap {gap:.0f} ms" for what, gap in f.gaps_ms.items()),
            f"opening {f.n_opened:,} tokens: visible after {f.visible_s:.2f} s, awake after {f.awake_s:.2f} s",
            f"closing in the middle of a prefill: {f.closing_s:.2f} s",
        ]
    )


def _after(seconds: float) -> Callable[[], object]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.window", description="Measure how long the window makes wait."
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    application = QApplication([])
    sys.setswitchinterval(SWITCH_INTERVAL)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
            os.environ[name] = folder
        state = AppState(Settings(), Library(Path(folder)))
        window = Window(state, StarterState(state))
        window.show()
        measurement = Measurement(window, arguments.model)
        application.exec()
        findings = measurement.findings
        del measurement
    print(json.dumps({"gap_ms": findings.gap_ms, **asdict(findings)}) if arguments.json else _render(findings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
