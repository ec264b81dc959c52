"""A visit to the program in a process of its own: drop files on the window, say something, print what it cost.

python -m tests.app.visit WORDS FILES_TO_DROP... -- ARGUMENTS_OF_MAIN...
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication

from app.main import main
from app.panels.plot import turn_bars
from app.window import Window
from tests.app.driving import Person, answered, drop, press


def visit(words: str, dropped: list[Path], arguments: list[str]) -> None:
    def script(window: Window):  # type: ignore[no-untyped-def]
        state = window.state
        state.settings.max_tokens, state.settings.temperature = 8, 0.0
        if dropped:
            drop(window, *dropped)
        is_answered = answered(state)
        window.chat.composer.set_text(words)
        press(window, "Send")
        yield is_answered
        bars = turn_bars(state.conversation, str)
        texts = [message.text for message in state.conversation.transcript.path()]
        sys.stdout.write(json.dumps({"bars": [(b.source, b.cache_n, b.prompt_n) for b in bars], "texts": texts}))

    application = QApplication([])
    person = Person(script)
    assert main(arguments) == 0
    assert application is not None
    if person.error is not None:
        raise person.error


if __name__ == "__main__":
    split = sys.argv.index("--")
    visit(sys.argv[1], [Path(path) for path in sys.argv[2:split]], sys.argv[split + 1 :])
