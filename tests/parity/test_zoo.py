"""Every causal type that transformers knows: what docs/zoo.md says of it is so, and no type is read wrongly."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.parity.zoo import TYPES, outcome

PAGE = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\S+) \| (agrees|differs|refused|not made) \|", PAGE, flags=re.MULTILINE))


@pytest.mark.parametrize("kind", TYPES)
def test_the_page_says_what_becomes_of_it(kind: str, tmp_path: Path) -> None:
    found = outcome(kind, tmp_path)
    assert found.status == ROWS[kind], found.said


def test_the_page_counts_at_least_what_was_promised_and_nothing_differs() -> None:
    assert sorted(ROWS) == sorted(TYPES)
    statuses = list(ROWS.values())
    assert statuses.count("agrees") >= 80 and "differs" not in statuses
    assert f"Of {len(TYPES)} types, {statuses.count('agrees')} are read and agree" in PAGE
