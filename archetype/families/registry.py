"""All families, one row each, and all presets by name."""

import difflib

from archetype.errors import CheckpointError, SpecError
from archetype.families import (
    bert,
    bigbird,
    bloom,
    deepseek_v2,
    gemma,
    gemma2,
    gpt2,
    gpt3,
    llama,
    longformer,
    mamba,
    marian,
    megabyte,
    mistral,
    mixtral,
    mpt,
    ngram,
    qwen2,
    recurrent,
    seq2seq,
    sparse_transformer,
    t5,
    transformer,
    vit,
)
from archetype.families.family import Family, Preset
from archetype.spec import ModelSpec

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        ngram.FAMILY,
        recurrent.FAMILY,
        seq2seq.FAMILY,
        transformer.FAMILY,
        marian.FAMILY,
        bert.FAMILY,
        gpt2.FAMILY,
        gpt3.FAMILY,
        t5.FAMILY,
        llama.FAMILY,
        mistral.FAMILY,
        qwen2.FAMILY,
        gemma.FAMILY,
        gemma2.FAMILY,
        deepseek_v2.FAMILY,
        mixtral.FAMILY,
        sparse_transformer.FAMILY,
        longformer.FAMILY,
        bigbird.FAMILY,
        bloom.FAMILY,
        mpt.FAMILY,
        mamba.FAMILY,
        megabyte.FAMILY,
        vit.FAMILY,
    )
}
# Those whose published weights are read and written, by what config.json calls them.
PUBLISHED: dict[str, Family] = {
    family.published.model_type: family for family in FAMILIES.values() if family.published is not None
}


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


def family_of(config: dict[str, object], place: str = "config.json") -> Family | None:
    """The family whose published format a config.json names; None where it is not registered.

    The decoder of an encoder or a pair, as some publish it alone, is not registered either.

    Raises:
        CheckpointError: the file names none.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        cause = f"{model_type!r} names no family"
        raise CheckpointError(f"{place}: model_type", cause, f"registered are {', '.join(sorted(PUBLISHED))}")
    family = PUBLISHED.get(model_type)
    alone = config.get("is_decoder") is True and config.get("is_encoder_decoder") is not True
    return None if family is None or (alone and not family.decodes) else family


def family_for(model: ModelSpec) -> Family:
    """The first family whose published format can express a specification.

    Raises:
        CheckpointError: none can; the message says what each one lacks.
    """
    reasons: list[str] = []
    for family in PUBLISHED.values():
        try:
            family.format.config_for(model)
        except CheckpointError as error:
            reasons.append(f"{family.name}: {error.place} {error.cause}")
        else:
            return family
    raise CheckpointError(model.name or "the specification", "no family can express it", "; ".join(reasons))
