"""Format for a single model of an unregistered family: its config.json and tensor names as read.

As long as the specification is unchanged, config.json is written back unchanged.
"""

import copy
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from archetype.errors import CheckpointError
from archetype.families.config import Config
from archetype.families.family import Family, InferenceReport
from archetype.families.format import TIED, Format
from archetype.families.prediction_layers import REMEDY, copies_beside, read_predictions
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec

DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class KeysAsRead:
    """Keys of a config.json, and the specification inferred from the keys and the tensors."""

    values: Mapping[str, Any]
    model: ModelSpec

    def read(self, config: Config) -> ModelSpec:
        config.used |= config.values.keys()
        return self.model

    def write(self, model: ModelSpec) -> dict[str, Any]:
        # unchanged: `Format.config_for` refuses any other specification
        return copy.deepcopy(dict(self.values))

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        return []  # a part of another kind is reported as a difference of fields


def family_as_read(
    model_type: str,
    values: Mapping[str, Any],
    model: ModelSpec,
    rules: Any,
    reading: InferenceReport,
    constants: Callable[[ModelSpec], Mapping[str, list[float]]] | None = None,
) -> Family:
    """Build a family for a single model.

    Args:
        model: inferred specification.
        rules: weight rules, or a function of the specification that returns them.
        reading: report of the inference.
        constants: required values of tensors that are left out (default: none).
    """
    classes = values.get("architectures")
    architecture = str(classes[0]) if isinstance(classes, list) and classes else "AutoModelForCausalLM"
    keys = KeysAsRead(values, model)
    ignored = tuple(re.escape(name) for name in reading.left_out)
    copies = TIED
    if isinstance(model, Decoder) and model.further_tokens is not None:
        # prediction layers that were left out may repeat the model's tables
        copies = TIED | copies_beside(reading.left_out, model)
    return Family(model_type, {}, Format(
        model_type, architecture, keys, rules, "", ignored, copies, constants=constants
    ), reading)


def with_predictions(family: Family, model: ModelSpec, values: Mapping[str, Any], names: Collection[str]) -> Family:
    """Return the family of a single model, with its layers for multi-token prediction.

    Args:
        family: family of the model without these layers.
        names: names of all tensors in the file.

    Raises:
        CheckpointError: the file has no such layers, or they cannot be read.
    """
    if not isinstance(model, Decoder) or model.further_tokens is not None:
        raise CheckpointError("further_tokens", f"a model of kind {model.kind} cannot have these layers", REMEDY)
    rules = family.format.rules_for(model)
    predictions = read_predictions(names, rules, model)
    used, patterns = {rule.hf for rule in predictions.rules}, [re.compile(pattern) for pattern in family.format.ignored]
    left_out = tuple(name for name in names if name in predictions.copies or any(p.fullmatch(name) for p in patterns))
    reading = family.reading or InferenceReport((), len(names) - len(left_out), (), (), (), ())
    reading = replace(reading, left_out=tuple(name for name in left_out if name not in used))
    extended = model.replace(further_tokens=predictions.further_tokens)
    return family_as_read(family.name, values, extended, (*rules, *predictions.rules), reading)


def with_spec(family: Family, model: ModelSpec) -> Family:
    """Return the family for a specification with corrected assumptions. Registered families are returned unchanged."""
    if family.published is None or not isinstance(family.format.keys, KeysAsRead):
        return family
    return replace(family, published=replace(family.format, keys=replace(family.format.keys, model=model)))


def with_dtype(values: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    nested = {key: with_dtype(value, dtype) for key, value in values.items() if isinstance(value, dict)}
    return {**values, **nested, **{key: dtype for key in DTYPE_KEYS if values.get(key) is not None}}


def named_dtype(values: Mapping[str, Any]) -> str | None:
    # multimodal files name the dtype in their sections
    sections = (values, *(value for value in values.values() if isinstance(value, dict)))
    names = (section.get(key) for section in sections for key in DTYPE_KEYS)
    return next((name for name in names if isinstance(name, str)), None)
