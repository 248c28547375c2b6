"""GET /api/models, /api/presets and /api/spec/schema: models and specifications to choose from."""

import asyncio
from typing import Any

from typing_extensions import TypedDict

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models, Source
from archetype.convert.source import open_spec
from archetype.errors import ArchetypeError
from archetype.families.index import preset_facts
from archetype.machine.hardware import DEVICES
from archetype.models.file import json_schema

GENERATING = ("decoder", "ngram", "megabyte", "encoder_decoder")


class ServedModels(TypedDict):
    models: list[dict[str, Any]]


class Presets(TypedDict):
    presets: list[dict[str, Any]]
    devices: list[str]


async def presets(exchange: Exchange) -> Presets:
    presets = [{"name": name} | facts._asdict() for name, facts in preset_facts().items()]
    return {"presets": presets, "devices": list(DEVICES)}


async def schema(exchange: Exchange) -> dict[str, Any]:
    return await asyncio.to_thread(json_schema)


async def served_models(exchange: Exchange) -> ServedModels:
    """Respond with facts about each model from its specification, without loading the models."""
    models = exchange.app.models
    return {"models": await asyncio.to_thread(lambda: [facts_of(models, source) for source in models.sources])}


def facts_of(models: Models, source: Source) -> dict[str, Any]:
    """Return facts about a model, such as its kind and context length, or the error if the model cannot be read."""
    model = next((model for model in models.loaded if model.name == source.name), None)
    try:
        spec = open_spec(source.place) if model is None else model.lm.spec
        has_template = models.has_chat_template(source)
    except ArchetypeError as error:
        return {"name": source.name, "error": str(error)}
    head = getattr(getattr(spec, "head", None), "kind", "")
    return {
        "name": source.name,
        "kind": spec.kind,
        "head": head,
        "loaded": model is not None,
        "context_length": spec.context_length,
        "num_layers": spec.num_layers,
        "vocab_size": getattr(spec, "vocab_size", None),
        "generates": spec.kind in GENERATING and head != "classification",
        "chat": has_template,
        "prompt": source.prompt,
        "tokenizer": None if model is None else model.lm.tokenizer is not None,
    }
