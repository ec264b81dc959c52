"""Where Dormouse keeps what belongs to its user, after each system's custom.

Every function returns a folder that exists, made on first need and readable by its owner alone.
"""

from contextlib import suppress
from pathlib import Path

from platformdirs import PlatformDirs

from engine.errors import DormouseError


def data_folder() -> Path:
    """Return the folder of what the user would miss: models and conversations."""
    return _made(_dirs().user_data_path)


def models_folder() -> Path:
    """Return the folder that models are fetched into."""
    return _made(data_folder() / "models")


def library_folder() -> Path:
    """Return the folder of the conversations, one slot file each."""
    return _made(data_folder() / "conversations")


def cache_folder() -> Path:
    """Return the folder of what can be computed again."""
    return _made(_dirs().user_cache_path)


def kernels_folder() -> Path:
    """Return the folder of compiled kernels. Nobody else can look into it, also where it was made by older versions."""
    folder = _made(cache_folder() / "kernels")
    if not folder.is_symlink():
        with suppress(OSError):  # somebody else's
            folder.chmod(0o700)
    return folder


def config_folder() -> Path:
    """Return the folder of the settings."""
    return _made(_dirs().user_config_path)


def log_folder() -> Path:
    """Return the folder of the logs."""
    return _made(_dirs().user_log_path)


def _dirs() -> PlatformDirs:
    return PlatformDirs("dormouse", appauthor=False)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DormouseError(f"The folder {folder} can't be made: {error.strerror}.") from error
    return folder
