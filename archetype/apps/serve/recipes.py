"""POST /api/spec/recipe: a training recipe for a specification. The first request imports torch."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.spec_problems import Answered, Problems, answered, problems
from archetype.apps.serve.specs import SpecRequest, file_name, read
from archetype.errors import SpecError, enumeration
from archetype.estimate.report import cost_report
from archetype.io.yaml import mapping_to_yaml, with_schema_line
from archetype.spec.extensions import extensions_of

FILES: dict[str, dict[str, Any]] = {  # kind of data -> files that the user has to provide
    "corpus": {"text": ["text.txt"]},
    "pairs": {"source": ["source.txt"], "target": ["target.txt"]},
    "images": {"file": "images.npz"},
    "labelled_text": {"examples": ["examples.jsonl"]},
}


class RecipeRequest(SpecRequest):
    """POST /api/spec/recipe.

    Attributes:
        data: kind of data (default: the first kind that suits the model).
        size: size of the text in bytes.
    """

    data: str | None = None
    size: Annotated[int, Field(ge=1, le=2**50)] = 10**6


class RecipeAnswer(Answered):
    data: str
    kinds: list[str]
    recipe: str
    command: str
    files: list[str]
    steps: int
    batch: int
    length: int | None
    flops: int
    memory: int


async def recipe(exchange: Exchange, body: RecipeRequest) -> RecipeAnswer | Problems:
    return await asyncio.to_thread(recipe_of, exchange.app.models, body)


def recipe_of(models: Models, body: RecipeRequest) -> RecipeAnswer | Problems:
    """Return a recipe that contains the specification, the command that runs it, and the costs of the run."""
    from archetype.training.defaults import recipe_for
    from archetype.training.memory import StepMemoryCost
    from archetype.training.resolve import resolve_objective

    try:
        spec = read(models, body)
        source = spec.dump()
        if size := getattr(spec, "vocab_size", None):
            source["vocab_size"] = size  # a default, too: if absent, the tokenizer decides
        by_kind, error = {}, None
        for kind, files in FILES.items():
            # a kind of data suits the model if an objective can be resolved for it
            recipe = recipe_for(source, {"kind": kind} | files, body.size)
            try:
                by_kind[kind] = recipe.replace(objective=resolve_objective(recipe, spec))
            except SpecError as refusal:
                # if no kind suits the model, the refusal of the first is shown
                error = error or refusal
        if not by_kind:
            assert error is not None
            raise error
        if body.data is not None and body.data not in by_kind:
            cause = f"{body.data!r:.40} does not suit this model"
            raise SpecError("data", cause, f"use {enumeration(by_kind, 'or')}")
    except SpecError as error:
        return problems(error, body.source or "")
    kind = body.data or next(iter(by_kind))
    recipe = by_kind[kind]
    batch_size, length = recipe.batch_size, recipe.sequence_length or spec.context_length
    report = cost_report(spec, batch_size, recipe.sequence_length)
    fields = recipe.dump()
    text = mapping_to_yaml({key: fields[key] for key in sorted(fields, key=lambda key: key == "spec")})
    name = file_name(spec)
    extensions = "".join(f" --extension {extension.name}" for extension in extensions_of([spec]))
    return {
        **answered(spec),
        "name": name,
        "data": kind,
        "kinds": list(by_kind),
        "recipe": with_schema_line(text, "recipe"),
        "command": f"archetype train --recipe {name}.recipe.yaml --to runs/{name}{extensions}",
        "files": [file for names in FILES[kind].values() for file in ([names] if isinstance(names, str) else names)],
        "steps": recipe.steps,
        "batch": batch_size,
        "length": None if kind == "images" else length,
        "flops": recipe.steps * report.flops["train"],
        "memory": StepMemoryCost(recipe.replace(dtype="float32"), spec).step(batch_size, length, False).peak,
    }
