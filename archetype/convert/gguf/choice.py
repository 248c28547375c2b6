"""Choice of the llama.cpp architecture for a model."""

from collections.abc import Callable, Mapping
from functools import cache

from archetype.convert.apply import shapes_of
from archetype.convert.gguf.architectures import ALSO, GGUF, few
from archetype.convert.gguf.encoders import as_mean
from archetype.convert.gguf.keys import Gguf, Keys
from archetype.convert.gguf.limits import check_limits, check_sublayers
from archetype.convert.gguf.tensors import constants, file_shapes
from archetype.errors import ArchetypeError, CheckpointError
from archetype.families import FAMILIES, Family, family_for
from archetype.models.build import build_on_meta
from archetype.models.spec import ModelSpec

Shapes = Callable[[], Mapping[str, tuple[int, ...]]]  # of the parameters of a model


def keys_of(target: Gguf, model: ModelSpec, shapes: Shapes | None = None) -> Keys:
    """Return the metadata keys of a model.

    Args:
        shapes: returns the shapes of the model's parameters.

    Raises:
        CheckpointError: llama.cpp does not support a field.
    """
    in_file = cache(lambda: file_shapes(model, target, None if shapes is None else shapes()))
    check_sublayers(target.architecture, model)
    keys = target.metadata(model, in_file, lambda name: constants(model, target)[name])
    check_limits(target.architecture, target.computed(model))
    return keys


def gguf_of(family: str, model: ModelSpec) -> Gguf:
    """Return the architecture of a family's model.

    Raises:
        CheckpointError: the table does not contain the family.
    """
    if family not in GGUF:
        raise _unknown(family)
    others = (GGUF[name] for name in ALSO.get(family, ()) if _reason(GGUF[family], model) is not None)
    return next((target for target in others if _reason(target, model) is None), GGUF[family])


def gguf_family(model: ModelSpec, family: Family | None = None) -> Family:
    """Return the family for a model's GGUF file: `family` if the table has it, otherwise the first that fits.

    Raises:
        CheckpointError: no architecture of llama.cpp computes the model.
    """
    if family is not None and family.name in GGUF:
        return family
    registered: Family | None = None
    closest: CheckpointError | None = None
    try:
        registered = family_for(model)
    except CheckpointError as error:
        closest = error
    is_known = registered is not None and registered.name in GGUF
    body = as_mean(model)
    shapes = cache(lambda: shapes_of(build_on_meta(body)))
    for name, target in sorted(GGUF.items(), key=lambda item: registered is None or item[0] != registered.name):
        if _reason(target, body, shapes) is None:
            return FAMILIES[name] if name in FAMILIES else Family(name, {})
    if registered is not None and is_known:
        return registered  # whose reason names a field
    raise closest or _unknown(model.kind if registered is None else registered.name)


def _unknown(name: str) -> CheckpointError:
    remedy = f"use --format hf; gguf supports {few(list(GGUF))}"
    return CheckpointError("--format", f"gguf does not support {name}", remedy)


def _reason(target: Gguf, model: ModelSpec, shapes: Shapes | None = None) -> ArchetypeError | None:
    # why llama.cpp does not compute a model as this architecture; None if it does
    try:
        keys_of(target, model, shapes)
    except ArchetypeError as error:
        return error
    return None
