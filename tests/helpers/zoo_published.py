"""Published configurations made small: of a type's own file every key is kept but the sizes."""

import copy
import json
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.convert.infer.small import MOST, make_small
from archetype.errors import ArchetypeError
from tests.helpers.published import EXACT
from tests.helpers.published_models import PublishedModel, published_models
from tests.helpers.weights import distance
from tests.helpers.zoo import SPECIAL, TASKS, TEXT, Outcome, class_of, drawn, reason_of

DECODERS = "CausalLM|LMHeadModel|ConditionalGeneration"
PAIRS = ("bart", "mbart", "marian")  # whose decoder alone nobody publishes
# Narrow heads, since nothing divides their scores, and larger ones magnify what float32 rounds; the rest as published.
GEMMA4 = {"per_layer_config": None, "hidden_size_per_layer_input": None, "head_dim": 4, "global_head_dim": 8}
# Sizes that go together in one type, beside those of SPECIAL.
FITTING: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"head_dim": 32},
    "qwen3_5_moe_text": {"head_dim": 32},
    "bloom": {"n_embed": 32},
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "kimi_linear": {
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "head_dim": 4,
        "num_key_value_heads": 4,
    },
    "lfm2": {"block_ff_dim": 96, "block_multiple_of": 8, "full_attn_idxs": [1]},
}


def pinned_decoders(shared: Path) -> dict[str, list[PublishedModel]]:
    """The published configurations of decoders, by causal type."""
    by_type: dict[str, list[PublishedModel]] = {}
    for model in published_models(shared):
        names = str(model.values.get("architectures"))
        if model.type in TASKS["causal"].types and re.search(rf"({DECODERS})'\]$", names):
            by_type.setdefault(model.type, []).append(model)
    return {kind: models for kind, models in by_type.items() if kind not in PAIRS}


def made_small(values: dict[str, Any]) -> dict[str, Any]:
    """A published config.json with the sizes of a model of a few thousand parameters."""
    return make_small(values, {kind: SPECIAL.get(kind, {}) | FITTING.get(kind, {}) for kind in {*SPECIAL, *FITTING}})


def outcome_as_published(kind: str, model: PublishedModel, folder: Path) -> Outcome:
    """Make a published configuration of a type small, and read it."""
    values, task = made_small(model.values), TASKS["causal"]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            config = CONFIG_MAPPING[kind].from_dict(copy.deepcopy(values))
            make, part = class_of(config, task)
            with torch.device("meta"):
                count = make(part).num_parameters()
            if count > MOST:
                raise ValueError(f"{count:,} parameters")
            drawn(make(part)).save_pretrained(folder)
            (folder / "config.json").write_text(json.dumps(values))
            theirs = task.theirs(make.from_pretrained(folder).eval())
    except Exception as error:  # whatever a type's code raises on sizes that it was not written for
        return Outcome(kind, "not made", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            ours = archetype.load(folder).model(TEXT).logits
        except ArchetypeError as error:
            return Outcome(kind, "refused", reason_of(error, folder))
        difference = distance(ours, theirs)
    return Outcome(kind, "agrees" if difference < EXACT else "differs", f"{difference:.1e}")


def summary(results: list[Outcome]) -> str:
    """How many of a type's published configurations agree, and what became of the others, in a cell of a table."""
    counts = Counter(one.status for one in results)
    others = (f"{count} {status}" for status, count in sorted(counts.items()) if status != "agrees")
    return ", ".join([f"{counts['agrees']} of {len(results)}", *others])
