"""How an entry of the list of conversations looks: its title, and below it when and how much."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPalette
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.widgets.colors import is_dark, mixed
from app.widgets.painting import nothing, while_painting

DETAIL_ROLE = Qt.ItemDataRole.UserRole + 1
DAMAGED_ROLE = Qt.ItemDataRole.UserRole + 2
_MARGIN = 8
_GAP = 2
_DAMAGED_ON_LIGHT, _DAMAGED_ON_DARK = QColor("#c2362f"), QColor("#ef7a73")


class EntryDelegate(QStyledItemDelegate):
    """Paints two lines, both cut off with an ellipsis where the list is narrow."""

    @while_painting(QSize)
    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        font = option.font
        lines = QFontMetrics(font).height() + QFontMetrics(_small(font)).height()
        return QSize(120, lines + _GAP + 2 * _MARGIN)

    @while_painting(nothing)
    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        option = QStyleOptionViewItem(option)
        self.initStyleOption(option, index)
        title, option.text = option.text, ""
        style = option.widget.style() if option.widget else QApplication.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, option, painter, option.widget)

        is_selected = bool(option.state & QStyle.StateFlag.State_Selected)
        is_active = bool(option.state & QStyle.StateFlag.State_Active)
        group = QPalette.ColorGroup.Active if is_active else QPalette.ColorGroup.Inactive
        ink = option.palette.color(
            group, QPalette.ColorRole.HighlightedText if is_selected else QPalette.ColorRole.Text
        )
        quiet = ink if is_selected else mixed(option.palette, 0.65)
        area = option.rect.adjusted(_MARGIN, _MARGIN, -_MARGIN, -_MARGIN)

        painter.save()
        upper = QRect(area.topLeft(), QSize(area.width(), QFontMetrics(option.font).height()))
        _draw(painter, upper, title, option.font, ink)
        lower = QRect(area.left(), upper.bottom() + 1 + _GAP, area.width(), area.bottom() - upper.bottom() - _GAP)
        font = _small(option.font)
        if index.data(DAMAGED_ROLE):
            mark = "damaged"
            red = _DAMAGED_ON_DARK if is_dark(option.palette) else _DAMAGED_ON_LIGHT
            _draw(painter, lower, mark, font, ink if is_selected else red)
            lower.setLeft(lower.left() + QFontMetrics(font).horizontalAdvance(f"{mark}  "))
        _draw(painter, lower, index.data(DETAIL_ROLE), font, quiet)
        painter.restore()


def _small(font: QFont) -> QFont:
    small = QFont(font)
    small.setPointSizeF(0.85 * font.pointSizeF())
    small.setBold(False)
    return small


def _draw(painter: QPainter, area: QRect, text: str, font: QFont, color: QColor) -> None:
    painter.setFont(font)
    painter.setPen(color)
    shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, area.width())
    painter.drawText(area, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)
