"""The resources of the window: icons that are sharp and legible everywhere."""

import gc
from pathlib import Path

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QColor, QIcon, QImage, QPalette, QPixmap
from PySide6.QtWidgets import QApplication

from app import resources

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "resources").glob("*.svg"))
pytestmark = pytest.mark.usefixtures("qapp")


def image(icon: QIcon, size: int = 32, mode: QIcon.Mode = QIcon.Mode.Normal) -> QImage:
    return icon.pixmap(QSize(size, size), 1.0, mode).toImage()


def inks(picture: QImage) -> set[str]:
    """The colors of the pixels that are fully covered."""
    pixels = (picture.pixelColor(x, y) for x in range(picture.width()) for y in range(picture.height()))
    return {pixel.name() for pixel in pixels if pixel.alpha() == 255}


def test_an_icon_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        resources.icon("nothing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [16, 20, 24, 32, 256])
def test_icons_are_drawn_in_the_size_that_is_asked(name: str, size: int) -> None:
    picture = image(resources.icon(name), size)
    assert (picture.width(), picture.height()) == (size, size)
    assert inks(picture)
    assert picture.pixelColor(0, 0).alpha() < 255


def test_icons_take_the_scale_of_the_screen() -> None:
    pixmap = resources.icon("copy").pixmap(QSize(16, 16), 1.25)
    assert (pixmap.width(), pixmap.devicePixelRatio()) == (20, 1.25)


def test_signs_follow_the_palette(qapp: QApplication) -> None:
    icon = resources.icon("close")
    before = QPalette(qapp.palette())
    palette = QPalette(before)
    palette.setColor(QPalette.ColorRole.ButtonText, QColor("#12ab34"))
    palette.setColor(QPalette.ColorGroup.Disabled, QPalette.ColorRole.ButtonText, QColor("#777777"))
    try:
        qapp.setPalette(palette)
        assert inks(image(icon)) == {"#12ab34"}
        assert inks(image(icon, mode=QIcon.Mode.Disabled)) == {"#777777"}
    finally:
        qapp.setPalette(before)
    assert inks(image(icon)) == {before.color(QPalette.ColorRole.ButtonText).name()}


def test_application_icon_has_its_own_colors() -> None:
    assert len(inks(image(resources.icon("icon"), 64))) > 50


def test_icons_live_as_long_as_their_copies() -> None:
    gc.freeze()  # what earlier tests left need not be looked through fifty times
    for _ in range(50):
        icon = resources.icon("copy")
        copy = QIcon(icon)
        copy.addPixmap(QPixmap(4, 4))  # now it is a copy indeed
        del icon
        gc.collect()
        assert inks(image(copy))
    gc.unfreeze()
