"""The dialog of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal, Slot
from PySide6.QtGui import QPalette, QResizeEvent
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QFrame, QLabel, QScrollArea, QVBoxLayout, QWidget

from app.widgets.controls import label
from app.widgets.setting_editors import setting_editor

if TYPE_CHECKING:
    from app.settings import Declaration

_SIZE = QSize(600, 780)
_LEAST_WIDTH = 440  # below it the labels are above the controls
_Button = QDialogButtonBox.StandardButton


class SettingsDialog(QDialog):
    """Shows declared settings under the headings of their groups; what is changed counts from OK on."""

    changed = Signal(object)
    """The values that were changed, by the settings' names; at least one."""

    def __init__(
        self, declarations: Sequence[Declaration], values: Mapping[str, Any], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.resize(_SIZE.boundedTo(self.screen().availableSize()))
        self._declarations = declarations
        page = QWidget(self)
        self._editors = {declaration.name: setting_editor(declaration, page) for declaration in declarations}
        for name, editor in self._editors.items():
            editor.set_setting(values[name])
            editor.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            editor.installEventFilter(self)
        self._shown = self._settings()
        self._build(page)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Let the wheel scroll the page over controls that do not have the focus, rather than change their values."""
        if event.type() == QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        policy = QFormLayout.RowWrapPolicy
        self._form.setRowWrapPolicy(policy.WrapAllRows if self.width() < _LEAST_WIDTH else policy.DontWrapRows)

    def accept(self) -> None:
        """Close it and tell what was changed."""
        super().accept()
        if values := {name: value for name, value in self._settings().items() if value != self._shown[name]}:
            self.changed.emit(values)

    @Slot()
    def restore_defaults(self) -> None:
        """Show the defaults; they count from OK on, as everything."""
        for declaration in self._declarations:
            self._editors[declaration.name].set_setting(declaration.default)

    def _settings(self) -> dict[str, Any]:
        return {name: editor.setting() for name, editor in self._editors.items()}

    def _build(self, page: QWidget) -> None:
        self._form = form = QFormLayout(page)
        form.setContentsMargins(16, 4, 16, 16)
        form.setSpacing(8)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        for group, declarations in groupby(self._declarations, lambda declaration: declaration.group):
            form.addRow(_heading(group or "", page))
            for declaration in declarations:
                self._add_row(declaration, page)
        area = QScrollArea(self)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidgetResizable(True)
        area.setWidget(page)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 16)
        column.addWidget(area, 1)
        column.addWidget(self._buttons())

    def _add_row(self, declaration: Declaration, page: QWidget) -> None:
        editor = self._editors[declaration.name]
        name = label(declaration.label, page)
        name.setBuddy(editor)
        hint = label(declaration.hint, page, wraps=True)
        hint.setAlignment(Qt.AlignmentFlag.AlignTop)
        hint.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        column = QVBoxLayout()
        column.setSpacing(2)
        column.addWidget(editor)
        column.addWidget(hint, 1)
        self._form.addRow(name, column)

    def _buttons(self) -> QDialogButtonBox:
        buttons = QDialogButtonBox(_Button.Ok | _Button.Cancel | _Button.RestoreDefaults, self)
        buttons.setContentsMargins(16, 0, 16, 0)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        buttons.button(_Button.RestoreDefaults).clicked.connect(self.restore_defaults)
        for button in buttons.buttons():
            button.setAccessibleName(button.text().replace("&", ""))
        return buttons


def _heading(text: str, parent: QWidget) -> QLabel:
    heading = label(text, parent)
    font = heading.font()
    font.setBold(True)
    heading.setFont(font)
    heading.setContentsMargins(0, 12, 0, 0)
    return heading
