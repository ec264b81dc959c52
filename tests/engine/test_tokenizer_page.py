"""The page on tokenizers names what there is."""

import re
from pathlib import Path

from engine.tokenizer.pretokenizers import PRE_TOKENIZERS

PAGE = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text(encoding="utf-8")
ROWS = PAGE.partition("| pre-tokenizers that are the same")[2].partition("\n\n")[0].splitlines()


def test_the_page_names_every_pre_tokenizer_and_no_other() -> None:
    byte_level = {name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level}
    named = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(byte_level)


def test_the_page_puts_those_together_that_are_the_same() -> None:
    for row in ROWS[2:]:
        pres = [PRE_TOKENIZERS[name] for name in re.findall(r"`([^`]+)`", row)]
        assert len(set(pres)) == (len(pres) if "by itself" in row else 1), row
