"""The models of the gallery: facts with their sources, and the specifications that are known.

A specification is a preset, another model's specification with assignments as `archetype set` takes them, or a file in
`specs/`. The published configurations belong to their makers and are not included.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from archetype.families.index import preset_facts
from archetype.families.registry import preset
from archetype.gallery.facts import FOLDER, SPECS, facts
from archetype.gallery.tiny import tiny
from archetype.models.file import parse, read
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign

READ = FOLDER / "read.json"
# Source of dates, published counts and reports.
LISTED = "Raschka's LLM architecture gallery, copy of 2026-09-27"
TINY = "-tiny"


@dataclass(frozen=True)
class Evidence:
    """What `python -m benchmarks.gallery` found in the published files of a model.

    Attributes:
        config: the configuration that was read: repository, path, commit and SHA-256 of the file, or the class of
            transformers whose defaults it is. With `form: sizes`, another file that states the values of config.json.
        numbers: elements of the tensors that this model uses; None if their shapes are unknown.
        numbers_of: source of the shapes: `header` (of the published files) or transformers with its version.
        places: whether each tensor of the text decoder maps to a parameter; None if the names are unknown.
        agrees: transformers version whose small models of this type give the same logits; empty if none does.
        needs: what Archetype lacks to read the model; empty if the type is read.
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
        id: name of the model's page; never changes.
        name: as its makers write it.
        repository: owner/name of its weights on huggingface.co; empty if they are not published.
        type: model type in its config.json; in parentheses if it has none that transformers knows.
        date: publication date, as YYYY-MM-DD.
        total: parameters as published, such as 671B.
        active: active parameters per token, as published; empty for a dense model.
        report: address of its report.
        ancestor: id or preset of the model whose architecture it derives from; empty if unknown.
        spec: a preset or an id, and assignments separated by "; ", that make the specification.
        why: why the model matters, in a sentence or two.
        evidence: what its published files show.
        own: plain data of the specification of an added model.
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
        """Return the specification; None if the sizes are unknown or a part is not supported."""
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
    """Return all models of the gallery by id, in order of date."""
    readings = json.loads(READ.read_bytes()) if READ.is_file() else {}
    rows: tuple[dict[str, Any], ...] = facts()
    return {row["id"]: Entry(**row, evidence=Evidence(**readings.get(row["id"], {}))) for row in rows}


def specification(name: str) -> ModelSpec | None:
    """Return the specification of a gallery model or of its small variant `ID-tiny`; None if there is none."""
    if name in entries():
        return entries()[name].specification()
    if name.endswith(TINY) and (spec := specification(name.removesuffix(TINY))) is not None:
        return tiny(spec)
    return None
