"""Making the desktop know a checkout: its menu entry, its file type and its icon, in the user's own folders.

The places are those of the XDG Base Directory, Desktop Entry, Shared MIME-info and Icon Theme specifications.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

RESOURCES = Path(__file__).resolve().parent.parent / "resources"

ENTRY = Path("applications", "dormouse.desktop")
COPIES = {
    Path("mime", "packages", "dormouse.xml"): "dormouse-mime.xml",
    Path("icons", "hicolor", "scalable", "apps", "dormouse.svg"): "icon.svg",
}
"""Places below the data folder, and the files in `resources/` that they get."""


def data_folder() -> Path:
    """Return the folder where the user's desktop looks for data: $XDG_DATA_HOME or ~/.local/share."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def install(program: Path, folder: Path) -> None:
    """Put the entry, which starts `program`, the file type and the icon below `folder`, over what was there."""
    entry = (RESOURCES / "dormouse.desktop").read_text(encoding="utf-8")
    _write(folder / ENTRY, entry.replace("Exec=dormouse ", f"Exec={quoted(program)} "))
    for place, name in COPIES.items():
        _write(folder / place, (RESOURCES / name).read_text(encoding="utf-8"))
    _update_databases(folder)


def uninstall(folder: Path) -> None:
    """Remove what `install` put below `folder`, and the folders that are empty then."""
    for place in (ENTRY, *COPIES):
        (folder / place).unlink(missing_ok=True)
    _update_databases(folder)
    for place in (ENTRY, *COPIES):
        for parent in place.parents[:-1]:
            try:
                (folder / parent).rmdir()
            except OSError:
                break


def quoted(program: Path) -> str:
    r"""Return a path as the first word of an Exec line: `\\`, quotes, `$`, `` ` `` and `%` lose their meaning."""
    path = str(program).replace("%", "%%")
    for character in '\\"`$':
        path = path.replace(character, f"\\{character}")
    # the backslashes of the quoting are themselves escaped, as in all values of a desktop entry
    return '"{}"'.format(path.replace("\\", "\\\\"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _update_databases(folder: Path) -> None:
    """Let the desktop's tools take notice. Where they are missing, the desktop looks by itself at its next start."""
    for tool, place in (("update-mime-database", "mime"), ("update-desktop-database", "applications")):
        program = shutil.which(tool)
        if program is not None and (folder / place).is_dir():
            subprocess.run([program, folder / place], check=True)
