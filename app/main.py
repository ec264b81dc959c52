"""The program `dormouse`: from the command line to the end of the window."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from importlib.metadata import version
from pathlib import Path

import xxhash
from PySide6.QtWidgets import QApplication

from app import crash, resources
from app.library import Library
from app.settings import Settings
from app.single_instance import SingleInstance
from app.state.app_state import AppState
from app.state.starter_state import StarterState
from app.state.wishes import MODEL_SUFFIX
from app.window import Window
from engine.errors import DormouseError
from engine.paths import data_folder, library_folder, log_folder

SWITCH_INTERVAL = 0.0005
"""Seconds after which the engine must let the window have the interpreter. Qt gives it up at many calls, and would wait
ten times as long, by default, to get it back each time."""


def main(argv: list[str] | None = None) -> int:
    """Run the program with the arguments `argv`, by default the process's; return its exit status."""
    arguments = _parser().parse_args(argv)
    application = QApplication.instance() or QApplication([sys.argv[0]])
    sys.setswitchinterval(SWITCH_INTERVAL)
    assert isinstance(application, QApplication)
    application.setApplicationName("dormouse")
    application.setApplicationDisplayName("Dormouse")
    application.setDesktopFileName("dormouse")
    application.setWindowIcon(resources.icon("icon"))
    try:
        with contextlib.ExitStack() as stack:
            # one instance for each place of conversations, not for each person
            instance = SingleInstance(f"dormouse-{xxhash.xxh3_64_hexdigest(bytes(data_folder()))}")
            stack.callback(instance.close)
            if not instance.is_first and instance.send([str(file) for file in arguments.files]):
                return 0
            # what was imported stays: looking through it for garbage, again and again, would hold the window up
            gc.freeze()
            stack.callback(gc.unfreeze)
            reporter = crash.install(log_folder())
            stack.callback(reporter.uninstall)
            return _run(application, instance, reporter, [file.absolute() for file in arguments.files])
    except DormouseError as error:
        sys.stderr.write(f"dormouse: {error}\n")
        return 1


def _run(application: QApplication, instance: SingleInstance, reporter: crash.CrashReporter, files: list[Path]) -> int:
    settings = Settings.load()
    state = AppState(settings, Library(library_folder()))
    state.reports.problem_found.connect(reporter.report)
    state.model.loaded.connect(lambda: _note_kernels(state, reporter))
    starter = StarterState(state)
    starter.fetched.connect(state.load_model)
    starter.failed.connect(state.reports.report)
    window = Window(state, starter)
    instance.received.connect(window.receive)
    window.show()
    _begin(state, starter, files)
    status = application.exec()
    window.close()
    for sentence in state.unsaved:
        reporter.note(sentence)
        sys.stderr.write(f"dormouse: {sentence}\n")
    try:
        settings.save()
    except DormouseError as error:
        sys.stderr.write(f"dormouse: {error}\n")
    return status


def _note_kernels(state: AppState, reporter: crash.CrashReporter) -> None:
    if state.model.model is not None:
        reporter.kernels = state.model.model.kernels


def _begin(state: AppState, starter: StarterState, files: list[Path]) -> None:
    """Open what was asked for, otherwise what was open last; the first model is the starter if it is there.

    What the start before this one did not survive is left out.
    """
    settings = state.settings
    models = [file for file in files if file.suffix.lower() == MODEL_SUFFIX]
    model = Path(settings.last_model) if settings.last_model is not None else starter.path
    last = Path(settings.last_conversation) if settings.last_conversation is not None else None
    left_out = state.left_out([*files, *filter(None, (model, last))])
    if not models and model is not None and model not in left_out:
        state.load_model(model)
    if models == files and last is not None and last not in left_out:
        state.open_conversation(last)
    state.open_files(file for file in files if file not in left_out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dormouse", description="Chat with local language models in conversations that sleep and wake."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="slot files to open, a GGUF file to load")
    parser.add_argument("--version", action="version", version=f"dormouse {version('dormouse')}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
