"""From a recipe to what a run works with: tokenizer, specification and task."""

from pathlib import Path
from typing import Any, assert_never

from archetype import spec as specs
from archetype.convert.source import open_spec
from archetype.data.corpus import corpus, split
from archetype.data.images import Images, read_images
from archetype.data.pairs import read_lines, tokenized
from archetype.errors import DataError, SpecError
from archetype.io.text import read_text
from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer, trainable_kinds
from archetype.tokenizers.registry import tokenizer_class
from archetype.tokenizers.special_tokens import mask_id
from archetype.train.objective import Task
from archetype.train.objectives.images import ImageTask
from archetype.train.objectives.pairs import PairsTask
from archetype.train.objectives.text import MaskedTokenTask, NextTokenTask, SpanCorruptionTask, corrupted
from archetype.train.recipe import (
    ImageClass,
    MaskedToken,
    NextToken,
    Objective,
    Pairs,
    Pictures,
    Recipe,
    SequenceToSequence,
    SpanCorruption,
    Text,
)

DEFAULT_VOCABULARY = 4096


def read_texts(recipe: Recipe, folder: Path) -> dict[str, str]:
    """All texts of a recipe by the field that names them; a run's own text has a path within its folder."""
    match recipe.data:
        case Text(text=files):
            return {"text": _joined(files, folder, "text")}
        case Pairs(source=source, target=target):
            sides = (("source", source), ("target", target))
            return {field: _joined(files, folder, field, by_line=True) for field, files in sides}
        case Pictures():
            return {}
        case _:
            assert_never(recipe.data)


def tokenizer_for(recipe: Recipe, texts: dict[str, str]) -> Tokenizer | None:
    """The tokenizer that a recipe names, trained on what is not held out where it is to be trained."""
    data = recipe.data
    if isinstance(data, Pictures):
        return None
    if data.tokenizer not in trainable_kinds():
        return open_tokenizer(Path(data.tokenizer))
    training = _training_texts(data, texts)
    if data.tokenizer == "characters":
        training = list(texts.values())  # the alphabet alone; a held-out character that is unknown could not be scored
    learned = tokenizer_class(data.tokenizer).learns_vocabulary
    size = (data.vocab_size or DEFAULT_VOCABULARY) if learned else None
    return train_tokenizer(data.tokenizer, training, size, lowercase=data.lowercase)


def objective_for(recipe: Recipe, model: specs.ModelSpec | dict[str, Any]) -> Objective:
    """The recipe's objective, or the one that suits the model and the data."""
    if recipe.objective is not None:
        return recipe.objective
    kind = model.get("kind", "decoder") if isinstance(model, dict) else model.kind
    if kind == "encoder":
        return MaskedToken()
    if kind == "encoder_decoder":
        return SequenceToSequence() if isinstance(recipe.data, Pairs) else SpanCorruption()
    return ImageClass() if kind == "vision_encoder" else NextToken()


def spec_for(recipe: Recipe, tokenizer: Tokenizer | None) -> specs.ModelSpec:
    """The specification that a recipe names, with room for every token and for what the objective adds to them.

    Raises:
        SpecError: its vocabulary is too small.
    """
    if tokenizer is None:
        return open_spec(recipe.spec)
    given: Any = recipe.spec
    if isinstance(given, dict) and "vocab_size" not in given and given.get("kind") != "vision_encoder":
        needed = _needed_ids(recipe, objective_for(recipe, given), tokenizer, given.get("context_length"))
        given = {"vocab_size": needed} | given
    model = open_spec(given)
    if isinstance(model, specs.VisionEncoder):
        raise SpecError("data", "a vision encoder learns from images", "use data: {kind: images, file: FILE.npz}")
    needed = _needed_ids(recipe, objective_for(recipe, model), tokenizer, model.context_length)
    sizes = {"vocab_size": model.vocab_size}
    if isinstance(model, specs.EncoderDecoder) and model.source_vocab_size is not None:
        sizes["source_vocab_size"] = model.source_vocab_size
    for field, size in sizes.items():
        if size < needed:
            cause = f"{size} is too small for the {needed} tokens of the tokenizer and the objective"
            raise SpecError(field, cause, "raise it, leave it out of the recipe's spec, or use a smaller tokenizer")
    return model


def task_for(recipe: Recipe, model: specs.ModelSpec, tokenizer: Tokenizer | None, texts: dict[str, str]) -> Task:
    """What a run learns.

    Raises:
        SpecError: the objective does not suit the model or the data.
        DataError: there is too little to learn from.
    """
    objective, data = objective_for(recipe, model), recipe.data
    length = recipe.length or model.context_length
    if length > model.context_length:
        cause = f"{length} is more than the model's context of {model.context_length}"
        raise SpecError("length", cause, "use a shorter length or a longer context")
    match objective, data, model:
        case ImageClass(), Pictures(), specs.VisionEncoder(head=specs.ClassificationHead(num_classes=classes)):
            images = _images(data, model, classes)
            training, validation = images.split(data.validation, recipe.seed)
            return ImageTask(training, validation, recipe.batch_size, recipe.seed, objective)
        case SequenceToSequence(), Pairs(), specs.EncoderDecoder():
            return _pairs_task(recipe, data, objective, tokenizer, texts, length)
        case ((NextToken() | MaskedToken() | SpanCorruption()), Text(), _):
            return _text_task(recipe, data, objective, model, tokenizer, texts["text"], length)
        case _:
            cause = f"{objective.kind} does not suit a model of kind {model.kind} and data of kind {data.kind}"
            raise SpecError("objective", cause, "leave it out to get the one that does, or give other data")


def _text_task(
    recipe: Recipe,
    data: Text,
    objective: NextToken | MaskedToken | SpanCorruption,
    model: specs.ModelSpec,
    tokenizer: Tokenizer | None,
    text: str,
    length: int,
) -> Task:
    assert tokenizer is not None
    tokens = corpus(text, tokenizer, data.validation)
    sizes = (tokens, recipe.batch_size, length, recipe.seed)
    match objective, model:
        case NextToken(), specs.Decoder() | specs.NGram() | specs.MegaByte():
            return NextTokenTask(*sizes)
        case MaskedToken(), specs.Encoder(head=specs.MaskedLanguageModelHead()):
            return MaskedTokenTask(*sizes, objective, mask_id(tokenizer), tokenizer.vocab_size)
        case SpanCorruption(), specs.EncoderDecoder():
            return SpanCorruptionTask(*sizes, objective, model.vocab_size - 1)
        case _:
            cause = f"{objective.kind} does not suit a model of kind {model.kind} with this head"
            raise SpecError("objective", cause, "leave it out to get the one that does")


def _pairs_task(
    recipe: Recipe,
    data: Pairs,
    objective: SequenceToSequence,
    tokenizer: Tokenizer | None,
    texts: dict[str, str],
    length: int,
) -> Task:
    assert tokenizer is not None
    sources, targets, cut = _lines(data, texts)
    training = tokenized(sources[:cut], targets[:cut], tokenizer, length)
    validation = tokenized(sources[cut:], targets[cut:], tokenizer, length)
    if not len(training) or not len(validation):
        cause = f"{len(training)} pairs to learn from and {len(validation)} held out fit into {length} tokens"
        raise SpecError("data", cause, "give more pairs, or a longer length")
    return PairsTask(training, validation, recipe.batch_size, recipe.seed, objective)


def _images(data: Pictures, model: specs.VisionEncoder, num_classes: int) -> Images:
    """The pictures, of the size and the classes that the model is for."""
    if not data.file:
        raise SpecError("data.file", "no file is given", "name one with --images, or in the recipe")
    images = read_images(Path(data.file))
    found, wanted = images.images.shape[1:], (model.num_channels, model.image_size, model.image_size)
    if found != wanted:
        given, taken = (" x ".join(map(str, shape)) for shape in (found, wanted))
        raise DataError(data.file, f"its images are {given} and the model takes {taken}", "change either")
    if images.labels.max() >= num_classes:
        cause = f"holds class {images.labels.max()} and the model's {num_classes} classes count from 0"
        raise DataError(data.file, cause, "change either")
    return images


def _training_texts(data: Text | Pairs, texts: dict[str, str]) -> list[str]:
    """The texts without what is held out."""
    if isinstance(data, Text):
        return [split(text, data.validation)[0] for text in texts.values()]
    sources, targets, cut = _lines(data, texts)
    return ["\n".join(lines[:cut]) for lines in (sources, targets)]


def _lines(data: Pairs, texts: dict[str, str]) -> tuple[list[str], list[str], int]:
    """Sources and targets, and how many of them are not held out."""
    sources, targets = read_lines(texts["source"], texts["target"], "data.source, data.target")
    return sources, targets, round(len(sources) * (1 - data.validation))


def _needed_ids(recipe: Recipe, objective: Objective, tokenizer: Tokenizer, context_length: Any) -> int:
    """The tokenizer's ids, and beyond them the mask or the sentinels that it has not."""
    match objective:
        case MaskedToken():
            return max(tokenizer.vocab_size, mask_id(tokenizer) + 1)
        case SpanCorruption():
            length = recipe.length or context_length
            if not isinstance(length, int):
                raise SpecError("spec.context_length", "is missing", "give it a value")
            return tokenizer.vocab_size + corrupted(length, objective)[1] + 1
        case _:
            return tokenizer.vocab_size


def _joined(files: tuple[str, ...], folder: Path, field: str, by_line: bool = False) -> str:
    """One text of several files; `by_line`, the last line of one does not run into the first of the next."""
    if not files:
        raise SpecError(f"data.{field}", f"no {field} is given", f"name a file with --{field}, or in the recipe")
    texts = [read_text(folder / file) for file in files]
    return "".join(text if not by_line or text.endswith("\n") else f"{text}\n" for text in texts)
