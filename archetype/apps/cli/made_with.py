"""What the lines of an output were made with, by which a later start sees whether they are still what is asked for."""

import hashlib
import json
from typing import Any

from archetype.api.language_model import LanguageModel
from archetype.data.tokenization import tokenizer_files
from archetype.spec.base import fingerprint
from archetype.spec.extensions import extensions_of
from archetype.weights.fingerprint import weights_fingerprint

MADE_WITH = "made_with"  # the key of a record
REMEDY = "choose another --output"
MadeWith = dict[str, str]  # hashes by what they are of: model, input, settings


def made_with(model: str, text: Any, settings: dict[str, Any]) -> MadeWith:
    """The hashes of what one text is made with.

    Args:
        model: its `model_hash`.
        text: the prompt, messages or source.
        settings: every one, also those that the model says.
    """
    return {"model": model, "input": _hash(text), "settings": _hash(settings)}


def difference(before: Any, now: MadeWith) -> str | None:
    """What has changed since a record was made; None where nothing has."""
    if not isinstance(before, dict):
        return "does not say what it was made with"
    changed = [name for name, hash in now.items() if before.get(name) != hash]
    return f"was made with another {' and another '.join(changed)}" if changed else None


def model_hash(lm: LanguageModel) -> str:
    """A hash of a model's specification, weights, tokenizer, chat template, and parts from outside."""
    tokenizer = None if lm.tokenizer is None else tokenizer_files(lm.tokenizer)[1]
    template = None if lm.template is None else [lm.template.source, dict(lm.template.tokens), dict(lm.template.named)]
    outside = [extension.sha256 for extension in extensions_of([lm.spec])]
    return _hash([fingerprint(lm.spec), weights_fingerprint(lm.model), tokenizer, template, lm.special, *outside])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
