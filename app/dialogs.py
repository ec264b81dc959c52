"""The dialogs of the menus. None of them stops the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Slot
from PySide6.QtWidgets import QFileDialog, QWidget

from app.crash import versions
from app.settings import DECLARATIONS, Declaration
from app.state.app_state import AppState
from app.widgets.controls import message_box
from app.widgets.settings_dialog import SettingsDialog
from engine import paths
from engine.kernels.choice import runnable

_SLOT_FILES = "Conversations (*.slot);;All files (*)"
_MODEL_FILES = "Models (*.gguf);;All files (*)"
_SUFFIX = "slot"


class Dialogs(QObject):
    """Asks for files and passes them to the state."""

    def __init__(self, state: AppState, window: QWidget) -> None:
        super().__init__(window)
        self._state = state
        self._window = window

    @Slot()
    def open_conversation(self) -> None:
        """Ask for a slot file and open it."""
        self._asking("Open Conversation", _SLOT_FILES, paths.library_folder(), self._state.open_conversation).open()

    @Slot()
    def load_model(self) -> None:
        """Ask for a GGUF file and load it."""
        last = self._state.settings.last_model
        folder = Path(last).parent if last else paths.models_folder()
        self._asking("Load Model", _MODEL_FILES, folder, self._state.load_model).open()

    @Slot()
    def save_as(self) -> None:
        """Ask for a place and write a copy of the conversation there."""
        dialog = self._asking("Save Conversation As", _SLOT_FILES, Path.home(), self._state.save_as)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setFileMode(QFileDialog.FileMode.AnyFile)
        dialog.setDefaultSuffix(_SUFFIX)
        path = self._state.conversation.path
        dialog.selectFile(path.name if path else f"conversation.{_SUFFIX}")
        dialog.open()

    @Slot()
    def settings(self) -> None:
        """Show the settings, and take what the person changes."""
        values = vars(self._state.settings)
        shown = [_shown(declaration, values[declaration.name]) for declaration in DECLARATIONS if declaration.group]
        dialog = SettingsDialog(shown, values, self._window)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.changed.connect(self._state.change_settings)
        dialog.open()

    @Slot()
    def about(self) -> None:
        """Say what this is, in which versions, and where it keeps things."""
        model = self._state.model.model
        folders = {
            "Conversations": paths.library_folder(),
            "Models": paths.models_folder(),
            "Settings": paths.config_folder(),
            "Logs": paths.log_folder(),
        }
        places = "\n".join(f"{name}: {folder}" for name, folder in folders.items())
        text = "Conversations with local models that sleep on disk and wake where they left off."
        details = f"{versions(model.kernels if model else 'none loaded')}\n\n{places}"
        box = message_box("About Dormouse", f"Dormouse\n\n{text}", details, self._window)
        box.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        box.open()

    def _asking(self, title: str, files: str, folder: Path, chosen: Callable[[Path], None]) -> QFileDialog:
        dialog = QFileDialog(self._window, title, str(folder), files)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda path: chosen(Path(path)))
        return dialog


def _shown(declaration: Declaration, value: object) -> Declaration:
    """Return what the dialog shows of a setting: of the kernels, those that run here and the ones that are set."""
    if declaration.name != "kernels" or not isinstance(declaration.allowed, tuple):
        return declaration
    here = runnable()
    return replace(declaration, allowed=tuple(name for name in declaration.allowed if name in here or name == value))
