"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "GLOSSARY.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {*re.findall(r"`((?:app|bench|docs|engine|packaging|resources|tests)/[\w/.-]+\.\w+)`", text)}
    assert {name for name in named if not (ROOT / name).exists()} == set()
    links = {*re.findall(r"\]\(([^)#:]+)\)", text)}
    assert {link for link in links if not (page.parent / link).exists()} == set()
