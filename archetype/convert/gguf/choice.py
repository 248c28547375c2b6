"""Choice of the architecture as which llama.cpp reads a model."""

from functools import cache

from archetype.convert.gguf.architectures import ALSO, GGUF
from archetype.convert.gguf.encoders import as_mean
from archetype.convert.gguf.keys import Gguf, Keys
from archetype.convert.gguf.rope import frequency_factors
from archetype.convert.gguf.tensors import file_shapes
from archetype.errors import CheckpointError
from archetype.families import FAMILIES, Family, family_for
from archetype.models.spec import ModelSpec


def keys_of(target: Gguf, model: ModelSpec) -> Keys:
    """Return the metadata keys of a model.

    Raises:
        CheckpointError: llama.cpp does not support a field.
    """
    shapes = cache(lambda: file_shapes(model, target))
    return target.metadata(model, shapes, lambda name: frequency_factors(model) or [])


def gguf_of(family: str, model: ModelSpec) -> Gguf:
    """Return the architecture of a family's model.

    Raises:
        CheckpointError: the table does not contain the family.
    """
    if family not in GGUF:
        known = ", ".join(GGUF)
        raise CheckpointError("--format", f"gguf does not support {family}", f"use --format hf; gguf supports {known}")
    others = (GGUF[name] for name in ALSO.get(family, ()) if _reason(GGUF[family], model) is not None)
    return next((target for target in others if _reason(target, model) is None), GGUF[family])


def gguf_family(model: ModelSpec, family: Family | None = None) -> Family:
    """Return the family as which a model is written: `family` if the table has it, else the first that fits.

    Raises:
        CheckpointError: no architecture of llama.cpp computes the model.
    """
    if family is not None and family.name in GGUF:
        return family
    closest: CheckpointError | None = None
    try:
        if (registered := family_for(model)).name in GGUF:
            return registered
    except CheckpointError as error:
        closest = error
    body = as_mean(model)
    for name, target in GGUF.items():
        if _reason(target, body) is None:
            return FAMILIES[name] if name in FAMILIES else Family(name, {})
    if closest is not None:
        raise closest
    known = ", ".join(dict.fromkeys(target.architecture for target in GGUF.values()))
    raise CheckpointError("--format", "no architecture of llama.cpp computes this model", f"gguf supports {known}")


def _reason(target: Gguf, model: ModelSpec) -> CheckpointError | None:
    # why llama.cpp does not compute a model as this architecture; None if it does
    try:
        keys_of(target, model)
    except CheckpointError as error:
        return error
    return None
