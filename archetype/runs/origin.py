"""Origin of an imported model: data that an export needs besides weights, tokenizer and template, as JSON."""

import warnings
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from archetype.errors import ArchetypeError, CheckpointError, SpecErrors, UnknownFamily
from archetype.families import FAMILIES, Family, InferenceReport
from archetype.families.as_read import KeysAsRead, family_as_read
from archetype.families.rules import Rule
from archetype.io import atomic
from archetype.io.files import check_regular
from archetype.io.yaml import read_mapping
from archetype.models.file import parse
from archetype.models.spec import ModelSpec

FILE = "origin.json"


class Origin(BaseModel):
    """Contents of origin.json. Fields that are not needed are empty.

    Attributes:
        family: name of a registered family, or the `model_type` of a family that is not registered.
        labels: class names, in the order of their ids.
        config: contents of config.json, if the family is not registered.
        spec: specification inferred from `config`.
        rules: name and layout of every tensor.
        reading: assumptions made when `spec` was inferred.
        image_processor: contents of preprocessor_config.json.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str | None = None
    labels: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    spec: dict[str, Any] | None = None
    rules: tuple[Rule, ...] = ()
    reading: InferenceReport | None = None
    image_processor: dict[str, Any] | None = None

    def open_family(self) -> Family | None:
        """Return the family; None if the model was trained here, or the family is not registered.

        Warns:
            UnknownFamily: the family belongs to an extension that is not loaded, or to a later version.
        """
        if self.family is None:
            return None
        # a registered family needs only its name
        if self.config is None or self.spec is None or self.reading is None:
            if (family := FAMILIES.get(self.family)) is None:
                cause = f"this model was imported as {self.family}, a family that is not registered"
                warnings.warn(UnknownFamily(f"{cause}; pass --extension FILE to write its format"), stacklevel=2)
            return family
        return family_as_read(self.family, self.config, parse(self.spec), self.rules, self.reading)


def write_origin(
    folder: Path,
    model: ModelSpec,
    family: Family | None,
    labels: tuple[str, ...] = (),
    image_processor: dict[str, Any] | None = None,
) -> None:
    """Write origin.json, unless it would be empty."""
    origin = Origin(family=family.name if family else None, labels=labels, image_processor=image_processor)
    # a family that is not registered is stored whole: what was read, and how every tensor was found
    if family is not None and family.published is not None and isinstance(keys := family.format.keys, KeysAsRead):
        origin = origin.model_copy(
            update={
                "config": dict(keys.values),
                "spec": keys.model.dump(),
                "rules": family.format.rules_for(model),
                "reading": family.reading,
            }
        )
    # a model that was trained here has no origin, and no file
    if data := origin.model_dump(mode="json", exclude_defaults=True):
        data["rules"] = [_without_defaults(rule) for rule in data.get("rules", ())]
        atomic.write_json(folder / FILE, {key: value for key, value in data.items() if value})


def read_origin(folder: Path) -> Origin:
    """Read origin.json of a run; an empty origin if the file does not exist."""
    file = folder / FILE
    check_regular(file, CheckpointError)
    if not file.exists():
        return Origin()
    try:
        origin = Origin.model_validate(read_mapping(file))
        # its damage is found now, not at the export
        origin.open_family()
    except ArchetypeError as error:
        damage = error.errors[0] if isinstance(error, SpecErrors) else error
        raise damage if damage.place.startswith(str(file)) else damage.at(str(file)) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = f"{file}: {'.'.join(map(str, first['loc']))}"
        raise CheckpointError(field, f"is damaged: {first['msg']}", "import the folder again") from None
    return origin


def _without_defaults(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if value != getattr(Rule, key, None)}
