"""The models of the gallery: facts with their sources, and the specification of each model that can be said.

A specification is a preset, another model's specification with assignments as `archetype set` takes them, or a file in
`specs/`. The configurations themselves belong to their makers and are not here.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from archetype.families.index import preset_facts
from archetype.families.registry import preset
from archetype.gallery.tiny import tiny
from archetype.models.file import parse, read
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign

FOLDER = Path(__file__).parent
MODELS, READ, SPECS = FOLDER / "models.csv", FOLDER / "read.json", FOLDER / "specs"
# Where dates, makers' counts and reports are listed.
LISTED = "Raschka's LLM architecture gallery, copy of 2026-09-27"
TINY = "-tiny"


@dataclass(frozen=True)
class Evidence:
    """What the published files of a model gave, as `python -m benchmarks.gallery` found it.

    Attributes:
        config: the configuration that was read: repository, path, commit and SHA-256 of the file, or the class of
            transformers whose defaults it is. With `form: sizes`, another file that states the values of config.json.
        numbers: how many numbers the tensors have that this model uses; None if their shapes are not known.
        numbers_of: where the shapes are from: `header` (of the published files) or transformers with its version.
        places: whether each tensor that a text decoder uses has a place here; None if the names are not known.
        agrees: the version of transformers whose small models of this type give the same logits; empty if none does.
        needs: what is missing here; empty if the type is read.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    numbers: int | None = None
    numbers_of: str = ""
    places: bool | None = None
    agrees: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Entry:
    """A model of the gallery.

    Attributes:
        id: name of its page, which never changes.
        name: as its makers write it.
        repository: owner/name of its weights on huggingface.co; empty if they are not published.
        type: model type in its config.json; in parentheses if it has none that transformers knows.
        date: of its publication, as YYYY-MM-DD.
        total: parameters as published, such as 671B.
        active: parameters that a token uses, as published; empty for a dense model.
        report: address of its report.
        ancestor: id, or preset, of the model from which its architecture comes; empty if there is none here.
        spec: how its specification is made: a preset or an id, and assignments separated by "; ".
        why: why it matters, in one sentence.
        evidence: what its files gave.
        own: plain data of the specification, for a model that was added by hand.
    """

    id: str
    name: str
    repository: str
    type: str
    date: str = ""
    total: str = ""
    active: str = ""
    report: str = ""
    ancestor: str = ""
    spec: str = ""
    why: str = ""
    evidence: Evidence = field(default_factory=Evidence)
    own: Mapping[str, Any] | None = None

    def specification(self) -> ModelSpec | None:
        """Return the specification; None if it is not known, or cannot be said."""
        return self._specification

    @cached_property
    def _specification(self) -> ModelSpec | None:
        if self.own is not None:
            return parse(dict(self.own))
        if self.spec:
            base, *changes = self.spec.split("; ")
            base_spec = preset(base) if base in preset_facts() else specification(base)
            assert base_spec is not None, self.id
            return assign(base_spec, changes).replace(name=self.id)
        file = SPECS / f"{self.id}.yaml"
        return read(file).replace(name=self.id) if file.is_file() else None


@cache
def entries() -> Mapping[str, Entry]:
    """Return all models of the gallery by id, in the order of their dates."""
    readings = json.loads(READ.read_bytes()) if READ.is_file() else {}
    with MODELS.open(encoding="utf-8", newline="") as rows:
        facts: list[dict[str, Any]] = list(csv.DictReader(rows))
    return {row["id"]: Entry(**row, evidence=Evidence(**readings.get(row["id"], {}))) for row in facts}


def specification(name: str) -> ModelSpec | None:
    """Return the specification of a model of the gallery, or of its small relative `ID-tiny`; None if there is none."""
    if name in entries():
        return entries()[name].specification()
    if name.endswith(TINY) and (spec := specification(name.removesuffix(TINY))) is not None:
        return tiny(spec)
    return None
