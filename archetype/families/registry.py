"""All families, one row each, and all presets by name."""

import difflib

from archetype.errors import CheckpointError, SpecError
from archetype.families import gpt2, llama
from archetype.families.family import Family, Preset
from archetype.spec import ModelSpec

FAMILIES: dict[str, Family] = {family.name: family for family in (gpt2.FAMILY, llama.FAMILY)}


def presets() -> dict[str, tuple[Family, Preset]]:
    """Every preset, with its family."""
    return {name: (family, preset) for family in FAMILIES.values() for name, preset in family.presets.items()}


def preset(name: str) -> ModelSpec:
    """The specification of a preset.

    Raises:
        SpecError: there is none of that name; the nearest is named.
    """
    known = presets()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        remedy = f"did you mean {close[0]}?" if close else "see `archetype list`"
        raise SpecError(name, "there is no preset, file or folder of this name", remedy)
    return known[name][1].make()


def family_of(config: dict[str, object], place: str = "config.json") -> Family:
    """The family that a config.json names."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        cause = f"{model_type!r} is no family that Archetype knows"
        raise CheckpointError(f"{place}: model_type", cause, f"known are {', '.join(sorted(FAMILIES))}")
    return FAMILIES[model_type]


def family_for(model: ModelSpec) -> Family:
    """The first family whose format can express a specification.

    Raises:
        CheckpointError: none can; the message says what the last one lacks.
    """
    reasons: list[str] = []
    for family in FAMILIES.values():
        try:
            family.config_for(model)
        except CheckpointError as error:
            reasons.append(f"{family.name}: {error.place} {error.cause}")
        else:
            return family
    raise CheckpointError(model.name or "the specification", "no family can express it", "; ".join(reasons))
