"""The models of the gallery, and which of them can be read as published.

They are the entries of Sebastian Raschka's LLM architecture gallery, its copy of 2026-09-27.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from archetype.families.registry import published
from archetype.gallery.entries import Entry
from tests.helpers.published_models import PublishedModel

FILE = Path(__file__).with_name("gallery.csv")
with FILE.open(encoding="utf-8") as lines:
    ROWS = list(csv.DictReader(lines))
# The pinned configuration of a model, or of one of the same weights in another precision, by id.
PINNED = {row["id"]: row["pinned"] for row in ROWS if row["pinned"]}
# What a model without a class in transformers needs, as far as its makers describe it, by id.
NEEDS = {row["id"]: row["needs"] for row in ROWS if row["needs"]}
# Configurations that are not pinned, by id: the values that decide the model, and where the file is; or the class of
# transformers whose defaults they are.
VALUES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("gallery_values.json").read_bytes())
NO_CLASS = "a reader: its type has code of its own, and no class in transformers"
# Types that docs/zoo.md has no row for, as transformers has no causal class of theirs; `test_published_models.py`,
# `test_glm5.py` and `test_own_code.py` compare them.
PROVEN = {
    "mistral3", "kimi_k2", "kimi_k25", "glm5_next", "muse_glimmer", "mimo_v2", "step3p5", "solar_open2",
    "naive_n05_flash",
}  # fmt: skip
# Types without a class in transformers, which tests compare with their equations, by the file in tests/parity.
BY_EQUATIONS = {"kimi_k3": "test_kimi_k3.py", "nanbeige": "test_loops.py", "ouro": "test_loops.py"}
# What a type is read without, and an entry might have.
NOTES = {"cohere2_moe": "refused where a shared expert is averaged with the others"}


@dataclass(frozen=True)
class Found:
    """What is known of an entry: whether it is read, and how we know."""

    entry: Entry
    is_read: bool
    how: Literal["by its pinned configuration", "by values of its configuration", "by its type alone", "not known"]
    said: str = ""


def with_values() -> dict[str, PublishedModel]:
    """The configurations of `VALUES`, by the id of their model."""
    return {
        name: PublishedModel(one["config"]["model"], f"{name}.json", one["values"], "") for name, one in VALUES.items()
    }


def find(entry: Entry, pinned: Mapping[str, tuple[str, str]], zoo: Mapping[str, tuple[str, str]]) -> Found:
    """Whether an entry can be read.

    Args:
        entry: of the gallery.
        pinned: status and reason by the file of each pinned configuration.
        zoo: status and reason by causal type of transformers.
    """
    if entry.id in PINNED:
        status, said = pinned[f"{PINNED[entry.id]}.json"]
        return Found(entry, status == "read", "by its pinned configuration", said)
    if entry.id in VALUES:  # each of them is read, which tests/parity/test_gallery.py proves
        return Found(entry, True, "by values of its configuration")
    if entry.type in zoo and entry.type not in PROVEN:
        status, said = zoo[entry.type]
        return Found(
            entry, status == "agrees", "by its type alone", NOTES.get(entry.type, "") if status == "agrees" else said
        )
    # a preset of the makers' sizes is said, whether or not their files can be read
    if entry.spec or entry.type in PROVEN or entry.type in BY_EQUATIONS or entry.type in published():
        return Found(entry, True, "by its type alone")
    return Found(entry, False, "not known", NEEDS.get(entry.id, NO_CLASS))
