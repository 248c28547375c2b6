"""The own type of folder: config.json holds a specification, of which `archetype.hf` makes a model for transformers.

It expresses every specification. Tensors have the names that they have here, below those of the class of transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from archetype.errors import CheckpointError, SpecError
from archetype.families.config import Config
from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.rules import Rule
from archetype.models.file import parse
from archetype.models.spec import ModelSpec
from archetype.spec.extensions import Extension

MODEL_TYPE = "archetype"
# of heads, which stand apart from the vectors that they read, and of all else
RULES = (
    Rule("lm_head.{name}", ("lm_head.{name}",)),
    Rule("classifier.{name}", ("classifier.{name}",)),
    Rule("model.network.{name}", ("{name}",)),
)


def read_own_spec(spec: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]] = ()) -> ModelSpec:
    """The specification of a configuration.

    Args:
        spec: as plain data.
        extensions: files with parts from outside that it needs: `name`, `sha256` and `kinds`.

    Raises:
        SpecError: the data is wrong, or a part from outside is not registered; nothing is ever loaded by itself.

    Warns:
        ChangedExtension: an extension is not the file that it was.
    """
    try:
        needed = [Extension.model_validate(extension) for extension in extensions]
    except ValidationError as error:
        raise SpecError("extensions", f"is damaged: {error.errors()[0]['msg']}", "restore the file") from None
    for extension in needed:
        extension.check("extensions")
    return parse(dict(spec))


def architecture_of(model: ModelSpec) -> str:
    """The class of `archetype.hf` that does what a model does."""
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
    """The keys of such a config.json, which say nothing but the specification."""

    def read(self, config: Config) -> ModelSpec:
        """The specification that stands there."""
        data, extensions = config.get("spec"), config.get("extensions") or []
        config.get("tie_word_embeddings")  # a head that shares the table has no weights of its own
        if not isinstance(data, dict) or not isinstance(extensions, list):
            raise config.error("spec", "is no specification", "is the file whole?")
        return read_own_spec(data, extensions)

    def write(self, model: ModelSpec) -> dict[str, Any]:
        """The specification as plain data."""
        return {"spec": model.dump(), "is_encoder_decoder": model.reads_source}

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        """None: every kind has a word."""
        return []


class OwnFormat(Format):
    """A format in which nothing is inexpressible, heads for classes neither."""

    def rules_for(self, model: ModelSpec) -> tuple[Rule, ...]:
        """All names below those of the class; without a head, those of the vectors' class alone."""
        is_bare = model.without_sentence_head().head.is_absent
        return (replace(RULES[-1], hf="network.{name}"),) if is_bare else RULES

    def spec_from(self, config: dict[str, Any], place: str = "config.json") -> ModelSpec:
        """The specification that a config.json holds."""
        reader = Config(config, place)
        model = self.keys.read(reader)
        reader.finish()
        return model

    def _write(self, model: ModelSpec) -> tuple[dict[str, Any], list[CheckpointError]]:
        config = {"architectures": [architecture_of(model)], "model_type": MODEL_TYPE}
        return config | self.keys.write(model.without_sentence_head()), []


OWN = Family(MODEL_TYPE, {}, OwnFormat(MODEL_TYPE, architecture_of, SpecificationKeys(), RULES, "model.", copies={}))
