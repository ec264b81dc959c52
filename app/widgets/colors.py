"""Colors derived from the palette, so that dark and light follow the system."""

from __future__ import annotations

from PySide6.QtGui import QColor, QPalette

_LIGHT_CODE = {"keyword": "#8a2da5", "string": "#2c7a2c", "comment": "#6e7781", "number": "#a1510a", "name": "#0b5cad"}
_DARK_CODE = {"keyword": "#d48be8", "string": "#93c97f", "comment": "#949ca8", "number": "#e3a66f", "name": "#78b4f0"}


def is_dark(palette: QPalette) -> bool:
    """Tell whether text is lighter than what it stands on."""
    role = QPalette.ColorRole
    return palette.color(role.WindowText).lightness() > palette.color(role.Window).lightness()


def mixed(palette: QPalette, share: float) -> QColor:
    """Return the base color with a share (0 to 1) of the text's: quiet backgrounds, borders, secondary text."""
    base, text = palette.color(QPalette.ColorRole.Base), palette.color(QPalette.ColorRole.Text)
    parts = ((base.redF(), text.redF()), (base.greenF(), text.greenF()), (base.blueF(), text.blueF()))
    return QColor.fromRgbF(*((1 - share) * b + share * t for b, t in parts))


def code_colors(palette: QPalette) -> dict[str, QColor]:
    """Return the color of each kind of word in source code."""
    return {kind: QColor(name) for kind, name in (_DARK_CODE if is_dark(palette) else _LIGHT_CODE).items()}
