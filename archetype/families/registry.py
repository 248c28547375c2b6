"""All families and presets by name, imported on first use."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from archetype.errors import CheckpointError, SpecError
from archetype.families.family import Family, Preset
from archetype.families.index import preset_facts
from archetype.families.own import OWN
from archetype.models.spec import ModelSpec

# Families with a module of the same name; `family_for` tries them in this order.
NAMES = (
    "ngram", "recurrent", "seq2seq", "original_transformer", "marian", "bert", "gpt2", "gpt3", "t5", "eurobert",
    "llama", "mistral", "qwen2",
    "gemma", "gemma2", "deepseek_v2", "mixtral", "sparse_transformer", "longformer", "big_bird", "bloom", "mpt",
    "mamba", "megabyte", "vit", "qwen3", "qwen3_moe", "gemma3_text", "olmo2", "phi3", "smollm3", "gpt_oss",
    "deepseek_v3", "deepseek_v4", "mamba2", "gpt_neox", "gptj", "opt", "falcon", "palm", "roberta", "albert", "switch",
    "grok",
    "glm4_moe", "minimax_m2", "qwen3_next", "olmo3", "nanochat", "llama4", "gopher", "modernbert", "deberta",
    "linear_attention", "minimax", "gemma3n_text", "gemma4_text", "recurrences", "rwkv7", "small_designs",
    "loops",
)
# Other modules: tables of several families that differ little from the families above, and modules whose name
# is not the model type.
SPELLINGS = {
    "pairs": (
        "bart", "plbart", "mvp", "mbart", "pegasus", "blenderbot", "blenderbot-small", "m2m_100", "mt5",
    ),
    "encoders": (
        "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl", "ernie",
        "megatron-bert", "electra", "roformer", "distilbert", "mpnet", "nomic_bert", "gte",
    ),
    "diffusion": ("llada", "Dream"),
    "pictures": ("deit", "vit_msn", "ijepa"),
    "deberta_v2": ("deberta-v2",),
    "gte_new": ("new",),
    "flash_linear_attention": ("gla", "retnet", "delta_net", "gated_deltanet", "kda", "transformer"),
}
MODULES = {name: module for module, names in SPELLINGS.items() for name in names}


_from_outside: dict[str, Family] = {}


class _Families(Mapping[str, Family]):
    def __getitem__(self, name: str) -> Family:
        if name in _from_outside:
            return _from_outside[name]
        if name in MODULES:
            return import_module(f"archetype.families.{MODULES[name]}").FAMILIES[name]
        if name not in NAMES:
            raise KeyError(name)
        return import_module(f"archetype.families.{name}").FAMILY

    def __iter__(self) -> Iterator[str]:
        return iter((*NAMES, *_from_outside, *MODULES))

    def __len__(self) -> int:
        return len(NAMES) + len(MODULES) + len(_from_outside)


FAMILIES = _Families()


def register_family(family: Family) -> Family:
    """Register an extension's family: its folders can be read and written, and its presets used by name.

    Args:
        family: family with the same name as the `model_type` of its format.

    Raises:
        SpecError: the name of the family or of a preset is taken, or the format has a different `model_type`.
    """
    if family.name in NAMES or family.name in MODULES or family.name == OWN.name:
        raise SpecError(family.name, "a family of this name is already registered", "choose another name")
    if family.published is not None and family.published.model_type != family.name:
        cause = f"its format has the model_type {family.published.model_type}"
        raise SpecError(family.name, cause, "use the same name for both")
    if taken := sorted(family.presets.keys() & preset_facts().keys()):
        raise SpecError(taken[0], "a preset of this name is already registered", "choose another name")
    _from_outside[family.name] = family
    published.cache_clear()
    presets.cache_clear()
    return family


@cache
def published() -> dict[str, Family]:
    return {family.published.model_type: family for family in FAMILIES.values() if family.published is not None}


def designs() -> list[str]:
    # the others are variants of these
    return [model_type for model_type, family in published().items() if family.presets]


@cache
def presets() -> dict[str, tuple[Family, Preset]]:
    return {name: (family, preset) for family in FAMILIES.values() for name, preset in family.presets.items()}


def preset(name: str) -> ModelSpec:
    """Return the specification of a preset.

    Raises:
        SpecError: the preset does not exist. The message names the closest preset.
    """
    # from the index, which imports only the preset's family
    if name in preset_facts():
        return _made(name)
    known = presets()  # includes presets that presets.json lacks
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        remedy = f"did you mean {close[0]}?" if close else "see `archetype list`"
        raise SpecError(name, "there is no preset, file or folder of this name", remedy)
    return known[name][1].make()


@cache
def _made(name: str) -> ModelSpec:
    # a specification never changes, and making one takes milliseconds: `explain` looks through all of them
    return FAMILIES[preset_facts()[name].family].presets[name].make()


def family_of(config: dict[str, object], place: str = "config.json") -> Family | None:
    """Return the family of a config.json; None if it is not registered.

    A decoder that was published without its encoder counts as unregistered too.

    Raises:
        CheckpointError: the file has no model type.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        cause = f"{model_type!r} is not a model type"
        raise CheckpointError(f"{place}: model_type", cause, "`archetype list` shows the registered families")
    if model_type == OWN.name:
        return OWN
    family = FAMILIES.get(model_type)
    if family is None or family.published is None:
        return None
    names = config.get("architectures")
    # such as the decoder of an encoder-decoder, saved as a causal model
    alone = config.get("is_decoder") is True and config.get("is_encoder_decoder") is not True
    alone = alone or (isinstance(names, list) and str(names[:1]).endswith("ForCausalLM']"))
    return None if alone and not family.decodes else family


KEEPS_ALL = "--format archetype-hf writes any model for transformers"


def family_for(model: ModelSpec) -> Family:
    """Return the first family whose published format can express a specification.

    Raises:
        CheckpointError: no family can. The message names the closest family, which has the same kinds of parts if
            possible, and the fewest inexpressible fields.
    """
    lacking: dict[str, list[CheckpointError]] = {}
    for family in published().values():
        errors = family.format.lacking(model)
        if not errors:
            return family
        # a format of another kind of model is no candidate for the closest
        if errors[0].place != "kind":
            lacking[family.name] = errors
    where = model.name or "the specification"
    if not lacking:
        raise CheckpointError(where, f"no published format supports models of kind {model.kind}", KEEPS_ALL)

    def distance(name: str) -> tuple[bool, bool, int]:
        # same kinds of parts first, then formats that could be compared completely, then fewest differences
        format = FAMILIES[name].format
        return bool(format.keys.misfits(model)), not format.can_compare(model), len(lacking[name])

    name = min(lacking, key=distance)
    first = lacking[name][0]
    raise CheckpointError(
        where,
        f"no family can express it; the closest is {name}: {first.place}: {first.cause}",
        KEEPS_ALL,
    )
