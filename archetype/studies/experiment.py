"""Read experiment files: a claim in parts, each with arms, a metric and a decision rule."""

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from archetype.data.held_out import Split
from archetype.errors import SpecError, errors_at, nearest
from archetype.io.yaml import read_mapping
from archetype.spec.base import Flag, Spec, fingerprint
from archetype.spec.errors import cut, invalid
from archetype.spec.serialize import document_schema
from archetype.studies.parts import TYPES, AnyPart, ScalingLawPart, TrainedPart
from archetype.studies.settings import is_text

MODES = ("quick", "full", "extended", "gpu")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")


class Experiment(Spec):
    """Claim or question, split into parts that are decided separately.

    Attributes:
        version: version of the file format.
        claim: number of the claim, among the 25 claims of the source documents.
        title: title of a few words.
        sentence: the claim of the source documents in our words.
        headline: note that is shown with every verdict.
        split: whether validation and test data are taken from everywhere in a text or from its end.
        parts: parts of the claim, each with a separate outcome.
        is_calibration: whether it calibrates the machine, which other verdicts require.
    """

    version: Literal[1] = 1
    claim: Annotated[int, Field(strict=True, ge=1)] | None = None
    title: str
    sentence: str = ""
    headline: str = ""
    split: Split = "everywhere"
    parts: Annotated[tuple[AnyPart, ...], Field(min_length=1)]
    is_calibration: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _check_types(cls, data: Any) -> Any:
        parts = data.get("parts") if isinstance(data, dict) else None
        for index, part in enumerate(parts if isinstance(parts, list | tuple) else ()):
            if isinstance(part, dict) and str(part.get("type")) not in TYPES:
                kind = part.get("type")
                cause = "is missing" if kind is None else f"{cut(kind)} is not a type of part ({', '.join(TYPES)})"
                invalid(f"parts[{index}].type", cause, nearest(str(kind), TYPES))
        return data

    @model_validator(mode="after")
    def _check_ids(self) -> "Experiment":
        ids = [part.id for part in self.parts]
        for index, name in enumerate(ids):
            if not NAME.fullmatch(name):
                invalid(f"parts[{index}].id", f"{cut(name)} is not a valid id", "use a-z, 0-9, - and _")
            if name in ids[:index]:
                invalid(f"parts[{index}].id", f"{name} occurs twice", "use a different id for each part")
        return self

    @model_validator(mode="after")
    def _check_split(self) -> "Experiment":
        if self.split == "end" and not self.reads_text:
            invalid("split", "applies to text data, and no part has any", "remove it")
        return self

    @property
    def reads_text(self) -> bool:
        trained = [part for part in self.parts if isinstance(part, TrainedPart | ScalingLawPart)]
        return any(is_text(source) for part in trained for source in part.data)

    def has(self, mode: str) -> bool:
        """Return whether the experiment supports a mode. Every experiment supports quick and full."""
        trained = [part for part in self.parts if isinstance(part, TrainedPart)]
        return (
            mode in ("quick", "full")
            or any(getattr(part.modes, mode) is not None for part in trained)
            or (mode == "extended" and any(len(part.data) > 1 for part in trained))
            or (mode == "gpu" and any(isinstance(part, ScalingLawPart) for part in self.parts))
        )

    @property
    def hash(self) -> str:
        """Hash of everything fixed before the runs, including the models and recipes that the file names.

        `split` is hashed unless it is `end`, so that the reports of this repository keep their hashes.
        """
        other = fingerprint(self.replace(split=type(self).model_fields["split"].default))
        if self.split == "end" or not self.reads_text:
            return other
        return hashlib.sha256(f"{other} {self.split}".encode()).hexdigest()[:16]


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema of experiment files for editors."""
    return document_schema("experiment", Experiment.model_json_schema())


def read_experiment(file: Path) -> Experiment:
    """Read an experiment from YAML or JSON, and insert the specification and recipe files that it names.

    Raises:
        SpecError: the file is invalid; the message names the file and its first invalid field.
    """
    data = read_mapping(file)
    if "space" in data and "parts" not in data:
        raise SpecError(str(file), "is a search, not an experiment", "run it with `archetype compare search`")
    with errors_at(str(file), SpecError):
        for part in parts if isinstance(parts := data.get("parts"), list) else ():
            if isinstance(part, dict):
                put_files_in_place(part, file.parent)
        return Experiment.parse(data)


def put_files_in_place(part: dict[str, Any], folder: Path) -> None:
    """Replace names of specification and recipe files with the parsed files, relative to the experiment's folder."""
    groups = [values for values in (part.get("modes"), part.get("arms")) if isinstance(values, dict)]
    for settings in [part, *(value for group in groups for value in group.values() if isinstance(value, dict))]:
        for key in ("base", "recipe", "spec"):
            if key in settings:
                settings[key] = _in_place(settings[key], folder)
        if isinstance(name := settings.get("from"), str) and not Path(name).exists() and (folder / name).exists():
            settings["from"] = str(folder / name)
        if isinstance(sizes := settings.get("sizes"), list):
            settings["sizes"] = [_in_place(name, folder) for name in sizes]


def _in_place(name: Any, folder: Path) -> Any:
    with suppress(OSError, ValueError):  # the text may be too long for a path, or contain NUL
        if isinstance(name, str) and (folder / name).is_file():
            return read_mapping(folder / name)
    return name
