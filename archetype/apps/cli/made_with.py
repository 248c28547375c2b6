"""Hashes of the model, input and settings of each output line, so that a resumed job keeps only matching lines."""

import hashlib
import json
from typing import Any

from archetype.api.language_model import LanguageModel
from archetype.data.tokenization import tokenizer_files
from archetype.generate.state_dtype import own_state_dtype
from archetype.spec.base import fingerprint
from archetype.spec.extensions import extensions_of
from archetype.weights.fingerprint import weights_fingerprint

MADE_WITH = "made_with"  # key in a record
REMEDY = "choose another --output"
MadeWith = dict[str, str]  # hashes under the keys model, input and settings


def made_with(model: str, text: Any, settings: dict[str, Any]) -> MadeWith:
    """Return the hashes of one output line.

    Args:
        model: hash from `model_hash`.
        text: prompt, messages or source text.
        settings: all settings, including the model's defaults.
    """
    return {"model": model, "input": _hash(text), "settings": _hash(settings)}


def difference(before: Any, now: MadeWith) -> str | None:
    """Return what has changed since a record was made; None if nothing changed."""
    if not isinstance(before, dict):
        return "does not record its model and settings"
    changed = [name for name, hash in now.items() if before.get(name) != hash]
    return f"was made with a different {' and '.join(changed)}" if changed else None


def model_hash(lm: LanguageModel) -> str:
    """Return a hash of a model's specification, weights, type of keys, tokenizer, template and extensions."""
    tokenizer = None if lm.tokenizer is None else tokenizer_files(lm.tokenizer)[1]
    template = None if lm.template is None else [lm.template.source, dict(lm.template.tokens), dict(lm.template.named)]
    outside = [extension.sha256 for extension in extensions_of([lm.spec])]
    # everything that a token may depend on, except for the settings, which each line has
    weights, state = weights_fingerprint(lm.model), own_state_dtype(lm.model)
    return _hash([fingerprint(lm.spec), weights, tokenizer, template, lm.special, *outside, *state])


def _hash(value: Any) -> str:
    # 48 bits are enough to notice a change
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
