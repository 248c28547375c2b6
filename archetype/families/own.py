"""Archetype's format: config.json contains a specification, which `archetype.hf` builds for transformers.

It expresses every specification. Tensors keep their names, prefixed as in the classes of `archetype.hf`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from archetype.errors import CheckpointError, SpecError
from archetype.families.classes import check_problem
from archetype.families.config import Config
from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.rules import Rule
from archetype.models.file import parse
from archetype.models.spec import ModelSpec
from archetype.parts.head.spec import ClassificationHead
from archetype.spec.extensions import Extension

MODEL_TYPE = "archetype"
# In those classes heads are outside the backbone; all other tensors are below model.network.
RULES = (
    Rule("lm_head.{name}", ("lm_head.{name}",)),
    Rule("classifier.{name}", ("classifier.{name}",)),
    Rule("model.network.{name}", ("{name}",)),
)


def read_own_spec(spec: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]] = ()) -> ModelSpec:
    """Return the specification in a configuration.

    Args:
        spec: specification as plain data.
        extensions: required extension files: `name`, `sha256` and `kinds`.

    Raises:
        SpecError: the data are invalid, or an extension is not loaded (extensions are never loaded automatically).

    Warns:
        ChangedExtension: an extension file has changed.
    """
    try:
        needed = [Extension.model_validate(extension) for extension in extensions]
    except ValidationError as error:
        raise SpecError("extensions", f"is damaged: {error.errors()[0]['msg']}", "restore the file") from None
    for extension in needed:
        extension.check("extensions")
    return parse(dict(spec))


def architecture_of(model: ModelSpec) -> str:
    if model.continues_text:
        return "ArchetypeForCausalLM"
    if model.reads_source:
        return "ArchetypeForSeq2SeqLM"
    if model.fills_masks:
        return "ArchetypeForMaskedLM"
    if not model.head.has_classes:
        return "ArchetypeModel"
    if model.reads_images:
        return "ArchetypeForImageClassification"
    return f"ArchetypeFor{'Token' if model.head.labels_tokens else 'Sequence'}Classification"


class SpecificationKeys:
    """Keys of a config.json in this format, which contain the specification."""

    def read(self, config: Config) -> ModelSpec:
        data, extensions = config.get("spec"), config.get("extensions") or []
        config.get("tie_word_embeddings")  # a tied head has no weights in this format
        if not isinstance(data, dict) or not isinstance(extensions, list):
            raise config.error("spec", "is not a specification", "is the file complete?")
        model = read_own_spec(data, extensions)
        if isinstance(model.head, ClassificationHead):
            check_problem(config, model.head.num_classes)
        return model

    def write(self, model: ModelSpec) -> dict[str, Any]:
        return {"spec": model.dump(), "is_encoder_decoder": model.reads_source}

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        return []  # every kind can be expressed


class OwnFormat(Format):
    """Format that expresses every specification."""

    def rules_for(self, model: ModelSpec) -> tuple[Rule, ...]:
        # without a head, the class is the backbone, whose names lack the prefix
        is_bare = model.without_sentence_head().head.is_absent
        return (replace(RULES[-1], hf="network.{name}"),) if is_bare else RULES

    def spec_from(self, config: dict[str, Any], place: str = "config.json") -> ModelSpec:
        reader = Config(config, place)
        model = self.keys.read(reader)
        reader.finish()
        return model

    def _write(self, model: ModelSpec) -> tuple[dict[str, Any], list[CheckpointError]]:
        config = {"architectures": [architecture_of(model)], "model_type": MODEL_TYPE}
        return config | self.keys.write(model.without_sentence_head()), []


OWN = Family(MODEL_TYPE, {}, OwnFormat(MODEL_TYPE, architecture_of, SpecificationKeys(), RULES, "model.", copies={}))
