"""The desktop's files: valid, in their places, gone without a trace, and slot files recognized by them."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from engine.slot.file.slot_file import SlotFile

ROOT = Path(__file__).parents[2]
MIME_TYPE = "application/vnd.dormouse.slot"
ASK_QT = """
import sys
from PySide6.QtCore import QMimeDatabase
database = QMimeDatabase()
for path in sys.argv[1:]:
    found = database.mimeTypeForFile(path)
    print(found.name(), "|", found.comment(), "|", found.iconName())
"""


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "packaging")
    import desktop  # noqa: PLC0415

    return desktop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(path))
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def mime_types(*paths: Path) -> list[str]:
    """What Qt, and with it the file managers that use it, takes files for; asked in a process that reads them anew."""
    command = [sys.executable, "-c", ASK_QT, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("program", ["/opt/dormouse", '/ho me/"q" $(x) `y` 100% \\ü/dormouse'])
def test_entry_is_valid_and_starts_the_program(desktop: ModuleType, folder: Path, program: str) -> None:
    desktop.install(Path(program), desktop.data_folder())
    entry = folder / "applications" / "dormouse.desktop"
    checked = subprocess.run(
        ["desktop-file-validate", "--warn-kde", entry], capture_output=True, text=True, check=False
    )
    assert (checked.stdout, checked.returncode) == ("", 0)
    lines = dict(line.split("=", 1) for line in entry.read_text().splitlines() if "=" in line)
    word, field = lines["Exec"].rsplit(" ", 1)
    assert field == "%f"
    # undone in the order of the specification: the value's own escapes, the quotes (as a shell's), the field codes
    script = f"printf %s {word.replace(chr(92) * 2, chr(92))}"
    unquoted = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert unquoted.replace("%%", "%") == program
    assert lines["MimeType"] == f"{MIME_TYPE};"
    assert lines["StartupWMClass"] == "dormouse"


def test_slot_files_are_recognized_by_name_and_by_content(desktop: ModuleType, folder: Path, tmp_path: Path) -> None:
    named, unnamed = tmp_path / "story.slot", tmp_path / "story"
    SlotFile.create(unnamed).close()
    named.write_bytes(b"")
    other = tmp_path / "other"
    other.write_bytes(unnamed.read_bytes().replace(b"Dorm", b"Worm", 1))

    before = mime_types(named, unnamed)
    assert not any(MIME_TYPE in line for line in before)
    desktop.install(Path("/opt/dormouse"), folder)
    by_name, by_content, by_neither = mime_types(named, unnamed, other)
    assert by_name == by_content == f"{MIME_TYPE} | Dormouse conversation | dormouse"
    assert MIME_TYPE not in by_neither
    desktop.uninstall(folder)
    assert mime_types(named, unnamed) == before


def test_installing_twice_is_installing_once(desktop: ModuleType, folder: Path) -> None:
    desktop.install(Path("/old/dormouse"), folder)
    once = files(folder)
    desktop.install(Path("/new/dormouse"), folder)
    assert files(folder) == once
    assert '"/new/dormouse"' in (folder / "applications" / "dormouse.desktop").read_text()


def test_without_the_tools_exactly_these_files_come_and_go(
    desktop: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    own = folder / "applications" / "other.desktop"
    own.parent.mkdir(parents=True)
    own.write_text("[Desktop Entry]\n")
    desktop.uninstall(folder)
    desktop.install(Path("/opt/dormouse"), folder)
    assert files(folder) == {
        "applications/dormouse.desktop",
        "applications/other.desktop",
        "icons/hicolor/scalable/apps/dormouse.svg",
        "mime/packages/dormouse.xml",
    }
    desktop.uninstall(folder)
    assert [path for path in folder.rglob("*") if path.is_file()] == [own]
    assert not (folder / "icons").exists()
    assert not (folder / "mime").exists()


def test_the_commands_use_the_users_folder_and_this_checkout(
    desktop: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dev  # noqa: PLC0415

    monkeypatch.setattr(dev.Environment, "prepare", lambda environment: None)
    assert dev.main(["install-desktop"]) == 0
    entry = (folder / "applications" / "dormouse.desktop").read_text()
    assert f'Exec="{ROOT / ".venv" / "bin" / "dormouse"}" %f\n' in entry
    assert dev.main(["uninstall-desktop"]) == 0
    assert not (folder / "applications" / "dormouse.desktop").exists()
