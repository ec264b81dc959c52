"""The version of Dormouse, whose one source is pyproject.toml."""

from importlib.metadata import version

VERSION = version("dormouse")
