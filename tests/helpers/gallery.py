"""The entries of a public gallery of architectures, and which of them can be read as published.

Sebastian Raschka's LLM architecture gallery, its copy of 2026-09-27: names and the repository of each, and the type
that its config.json names. Of facts only; the gallery's own words and figures are his.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from archetype.families.registry import published

FILE = Path(__file__).with_name("gallery.csv")
# Types that docs/zoo.md has no row for, as transformers has no causal class of theirs; `test_published_models.py` does.
PROVEN = {"mistral3", "kimi_k2", "kimi_k25"}
# What a type is read without, and an entry might have.
NOTES = {"cohere2_moe": "refused where a shared expert is averaged with the others"}


@dataclass(frozen=True)
class Entry:
    """An entry of the gallery.

    Attributes:
        name: of the entry.
        repository: that has its weights; empty where they are not published.
        type: that its config.json names; in parentheses where transformers has none of that name.
        pinned: the file of its pinned configuration, or of one of the same weights in another precision; empty where
            there is none.
    """

    name: str
    repository: str
    type: str
    pinned: str


@dataclass(frozen=True)
class Found:
    """What is known of an entry: whether it is read, and how we know."""

    entry: Entry
    is_read: bool
    how: Literal["by its pinned configuration", "by its type alone", "not known"]
    said: str = ""


def entries() -> list[Entry]:
    """All entries, by date."""
    with FILE.open(encoding="utf-8") as lines:
        return [Entry(**row) for row in csv.DictReader(lines)]


def find(entry: Entry, pinned: Mapping[str, tuple[str, str]], zoo: Mapping[str, tuple[str, str]]) -> Found:
    """Whether an entry can be read.

    Args:
        entry: of the gallery.
        pinned: status and reason by the file of each pinned configuration.
        zoo: status and reason by causal type of transformers.
    """
    if entry.pinned:
        status, said = pinned[f"{entry.pinned}.json"]
        return Found(entry, status == "read", "by its pinned configuration", said)
    if entry.type in zoo and entry.type not in PROVEN:
        status, said = zoo[entry.type]
        return Found(
            entry, status == "agrees", "by its type alone", NOTES.get(entry.type, "") if status == "agrees" else said
        )
    if entry.type in PROVEN or entry.type in published():
        return Found(entry, True, "by its type alone")
    return Found(entry, False, "not known", "code of its own, or a type without a causal class in transformers")
