"""What settings are changed with: one kind of control for each kind of value.

Each has the same two methods: `setting` returns the value that is shown, `set_setting` shows one. None is shown as
“Automatic”.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QPlainTextEdit, QSpinBox, QWidget

if TYPE_CHECKING:
    from app.settings import Declaration, Range

_AUTOMATIC = "Automatic"
_STEP = 0.05
_N_LINES = 4


class NumberEditor(QSpinBox):
    """A whole number; where that may be automatic, no text is, and so is the step below the lowest number."""

    def __init__(self, allowed: Range, parent: QWidget, *, can_be_automatic: bool) -> None:
        super().__init__(parent)
        self._can_be_automatic = can_be_automatic
        self.setRange(int(allowed.lowest) - can_be_automatic, int(allowed.highest))
        self.setStepType(QSpinBox.StepType.AdaptiveDecimalStepType)
        self.setCorrectionMode(QSpinBox.CorrectionMode.CorrectToNearestValue)
        self.setGroupSeparatorShown(True)
        if can_be_automatic:
            self.setSpecialValueText(_AUTOMATIC)
            self.lineEdit().setPlaceholderText(_AUTOMATIC)

    def setting(self) -> int | None:
        self.interpretText()
        return None if self._can_be_automatic and self.value() == self.minimum() else self.value()

    def set_setting(self, value: int | None) -> None:
        self.setValue(self.minimum() if value is None else value)

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        if self._can_be_automatic and not text:
            return QValidator.State.Acceptable, text, position
        return super().validate(text, position)

    def valueFromText(self, text: str) -> int:
        return super().valueFromText(text) if text else self.minimum()


class DecimalEditor(QDoubleSpinBox):
    """A number with two decimals."""

    def __init__(self, allowed: Range, parent: QWidget) -> None:
        super().__init__(parent)
        self.setRange(allowed.lowest, allowed.highest)
        self.setSingleStep(_STEP)
        self.setCorrectionMode(QDoubleSpinBox.CorrectionMode.CorrectToNearestValue)

    def setting(self) -> float:
        self.interpretText()
        return self.value()

    def set_setting(self, value: float) -> None:
        self.setValue(value)


class ChoiceEditor(QComboBox):
    """One of several names."""

    def __init__(self, allowed: tuple[str, ...], parent: QWidget, *, can_be_automatic: bool) -> None:
        super().__init__(parent)
        if can_be_automatic:
            self.addItem(_AUTOMATIC, None)
        for name in allowed:
            self.addItem(name, name)

    def setting(self) -> str | None:
        name: str | None = self.currentData()
        return name

    def set_setting(self, value: str | None) -> None:
        self.setCurrentIndex(self.findData(value))


class TextEditor(QPlainTextEdit):
    """A text of some lines."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setTabChangesFocus(True)
        self.setFixedHeight(_N_LINES * self.fontMetrics().lineSpacing() + 2 * round(self.document().documentMargin()))

    def setting(self) -> str:
        return self.toPlainText()

    def set_setting(self, value: str) -> None:
        self.setPlainText(value)


SettingEditor = NumberEditor | DecimalEditor | ChoiceEditor | TextEditor


def setting_editor(declaration: Declaration, parent: QWidget) -> SettingEditor:
    """Return the control for the values of a setting, with its accessible name and description."""
    editor = _editor(declaration, parent)
    editor.setAccessibleName(declaration.label)
    editor.setAccessibleDescription(declaration.hint)
    return editor


def _editor(declaration: Declaration, parent: QWidget) -> SettingEditor:
    allowed, can_be_automatic = declaration.allowed, type(None) in declaration.types
    if allowed is None:
        return TextEditor(parent)
    if isinstance(allowed, tuple):
        return ChoiceEditor(allowed, parent, can_be_automatic=can_be_automatic)
    if float in declaration.types:
        return DecimalEditor(allowed, parent)
    return NumberEditor(allowed, parent, can_be_automatic=can_be_automatic)
