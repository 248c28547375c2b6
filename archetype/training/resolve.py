"""Resolve a recipe with its data, model and budget: tokenizer, specification, objective, steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.convert.image_processor import ImageProcessor
from archetype.convert.source import open_spec
from archetype.data.skipping import Skipped, read_counting, skipping
from archetype.errors import CheckpointError, DataError, SpecError, enumeration
from archetype.families.family import Family
from archetype.families.registry import family_for
from archetype.io import atomic, hub
from archetype.io.text import read_text
from archetype.machine.device import resolve_dtype
from archetype.models.spec import ModelSpec, leaves_vocabulary_open
from archetype.surgery.report import new_tensors
from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer, trainable_kinds
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.chat_template import PLAIN, ChatTemplate, read_template, write_template
from archetype.tokenizers.registry import tokenizer_class
from archetype.training.budget import Budget
from archetype.training.datasets import Data, TokenizedData
from archetype.training.memory import check_memory
from archetype.training.objectives.base import Objective, ObjectiveConfig, ObjectiveInputs
from archetype.training.pretrained import Pretrained
from archetype.training.processes import ALONE, Processes
from archetype.training.recipe import Recipe
from archetype.training.stages import resolved_stages
from archetype.training.teacher.loss import OpenTeacher, TeacherLoss

TEXT_FILE = "text.txt"  # name in the run directory of a text passed as a string
DEFAULT_VOCAB_SIZE = 4096


@dataclass(frozen=True)
class ResolvedRecipe:
    """All settings of a run, before anything is written.

    Attributes:
        recipe: recipe with all settings that depend on data, model or budget filled in.
        notes: messages to show when the run starts.
        labels: class names; empty if the model does not classify.
        image_processor: contents of preprocessor_config.json, if the recipe overrides the pretrained model's.
        pretrained: model whose weights training starts from, if any.
        skipped: bad records that were left out.
    """

    recipe: Recipe
    spec: ModelSpec
    tokenizer: Tokenizer | None
    objective: Objective
    notes: tuple[str, ...]
    template: ChatTemplate | None
    labels: tuple[str, ...]
    image_processor: dict[str, Any] | None
    pretrained: Pretrained | None
    skipped: Skipped


def resolve_recipe(
    folder: Path,
    recipe: Recipe,
    device: torch.device,
    text: str | None = None,
    force: bool = False,
    budget: Budget | None = None,
    pretrained: Pretrained | None = None,
    processes: Processes = ALONE,
    is_plan: bool = False,
    open_teacher: OpenTeacher | None = None,
) -> ResolvedRecipe:
    """Read the data and determine all settings of a run, without writing anything (arguments: see `setup.start`).

    With `is_plan`, an adapter does not need a pretrained model.
    """
    with skipping(getattr(recipe.data, "skip_bad", 0)) as skipped:
        # Python represents bytes of a path that are not UTF-8 by surrogates, which YAML cannot store
        for path in (str(folder), *recipe.data.files()):
            if any("\ud800" <= character <= "\udfff" for character in path):
                raise DataError(path, "the name is not UTF-8", "rename the file")
        data = recipe.data.with_absolute_paths() if text is None else recipe.data.replace(text=(TEXT_FILE,))
        recipe = recipe.replace(dtype=resolve_dtype(recipe.dtype, device), data=data)
        texts = read_counting(lambda: data.read_texts(folder)) if text is None else {"text": text}
        notes = _about_weights(recipe.spec)
        tokenizer = pretrained.tokenizer if pretrained else None
        if pretrained is not None:
            notes = ()
            recipe = recipe.replace(spec=pretrained.model.spec.dump())
        elif recipe.adapter is not None and not is_plan:
            raise SpecError("adapter", "needs a pretrained model", "pass one with --from")
        # The order follows what each step needs: tokenizer (trained on the texts), specification (vocabulary of the
        # tokenizer), objective (its head and ids), examples, memory, steps.
        tokenizer = tokenizer or fitting_tokenizer(recipe, texts)
        if recipe.add_tokens:
            if tokenizer is None:
                raise SpecError("add_tokens", "the model has no tokenizer to add tokens to", "remove it")
            tokenizer = add_tokens(tokenizer, recipe.add_tokens)
            if pretrained is not None:
                recipe = recipe.replace(spec=with_room_for(tokenizer, pretrained.model.spec).dump())
        spec = resolve_spec(recipe, tokenizer)
        data = data.prepared_for(spec, pretrained.image_processor if pretrained else lambda: None)
        recipe = recipe.replace(data=data)
        config = resolve_objective(recipe, spec)
        config, resolved = config.resolve(spec, data, texts, pretrained.labels if pretrained else None)
        spec = with_published_head(spec, resolved, pretrained.family if pretrained else None)
        recipe = recipe.replace(objective=config)
        if recipe.add_tokens and pretrained and tokenizer and config.num_ids(tokenizer, 1) > tokenizer.vocab_size:
            cause = f"{config.kind} adds ids after the tokenizer's, and the pretrained model already uses these ids"
            raise SpecError("add_tokens", cause, "use a pretrained model whose tokenizer has the new tokens")
        if spec.reads_images and recipe.sequence_length is not None:
            raise SpecError("sequence_length", "image size and patch size determine it", "remove it")
        if isinstance(data, TokenizedData):
            longest = spec.context_length
            if pretrained is not None and pretrained.sentence is not None and spec.head.embeds:
                longest = min(longest, pretrained.sentence.max_length or longest)
                recipe = recipe.replace(data=data.replace(lowercase=data.lowercase or pretrained.sentence.lowercase))
            recipe = recipe.replace(sequence_length=recipe.sequence_length or longest)
        # before the examples are tokenized, which may take long
        processes.check(recipe, spec)
        template = resolve_template(data, tokenizer, pretrained)
        if template is None and data.is_chat and tokenizer is not None:
            template = with_tokens(ChatTemplate(PLAIN, {}), tokenizer)
            how = "role: content, with the end token after each answer"
            notes = (*notes, f"the model has no chat template; using a plain one ({how}): --set data.template=FILE")
        objective = build_objective(recipe, spec, tokenizer, texts, template)
        if objective.compares_rows and recipe.micro_batch_size == 1:
            cause = "the loss compares the rows of a micro-batch, so a micro-batch needs at least two rows"
            raise SpecError("micro_batch_size", cause, "raise micro_batch_size, or remove it")
        record = pretrained.transplant if pretrained else None
        stages = resolved_stages(recipe.stages, new_tensors(record), recipe.teacher is not None)
        recipe = recipe.replace(stages=stages, teacher=recipe.teacher and recipe.teacher.located(record))
        if recipe.teacher is not None:
            objective.teacher = TeacherLoss.open(recipe, spec, tokenizer, objective, device, open_teacher)
        if processes.is_alone and not force:
            check_memory(recipe, spec, objective, device)
        # last, because it counts targets of batches and may time steps
        if budget:
            recipe = budget.fit(recipe, spec, objective, device)
        labels = class_names(recipe.objective, spec, pretrained)
        image_processor = _changed_image_processor(data, pretrained)
        return ResolvedRecipe(
            recipe, spec, tokenizer, objective, notes, template, labels, image_processor, pretrained, skipped
        )


def with_published_head(before: ModelSpec, after: ModelSpec, family: Family | None) -> ModelSpec:
    """Return `after`, where the new class head of an encoder has the form that its published family uses.

    Args:
        before: the specification without the new head.
        after: the specification with the objective's head.
        family: published family (default: the first that can express `before`).
    """
    is_encoder = after.embeds_tokens and not after.is_causal
    if not is_encoder or not after.head.has_classes or after.head == before.head:
        return after  # decoders and image models have the same class head in every family
    try:
        family = family or family_for(before)
        return family.format.with_class_head(before, after.head.num_classes, after.head.labels_tokens)
    except CheckpointError:  # no published family can express this head
        return after


def fitting_tokenizer(recipe: Recipe, texts: dict[str, str]) -> Tokenizer | None:
    """Load or train the tokenizer. A trained tokenizer is limited to the vocabulary size of the recipe's model.

    Unless the data set the tokenizer's vocabulary size, room is left for the ids that the objective adds.
    """
    data = recipe.data
    if not isinstance(data, TokenizedData) or data.vocab_size or leaves_vocabulary_open(recipe.spec):
        return build_tokenizer(data, texts)
    spec = open_spec(recipe.spec)
    sizes = [getattr(spec, field, None) for field in ("vocab_size", "source_vocab_size")]
    room = min((size for size in sizes if size), default=None)
    tokenizer = build_tokenizer(data, texts, room)
    if tokenizer is None or room is None:
        return tokenizer
    length = recipe.sequence_length or spec.context_length
    num_more = resolve_objective(recipe, spec).num_ids(tokenizer, length) - tokenizer.vocab_size
    # trained again with fewer tokens: only the trained tokenizer tells how many ids the objective adds
    return tokenizer if tokenizer.vocab_size + num_more <= room else build_tokenizer(data, texts, room - num_more)


def build_tokenizer(data: Data, texts: dict[str, str], room: int | None = None) -> Tokenizer | None:
    """Load the tokenizer that the data name, or train it on the training part. Return None for images.

    If the data do not set the vocabulary size, `room` limits that of a trained tokenizer.
    """
    if not isinstance(data, TokenizedData):
        return None
    if data.tokenizer not in trainable_kinds():
        for field in ("vocab_size", "lowercase"):
            if getattr(data, field):
                raise SpecError(f"data.{field}", f"{data.tokenizer} is already trained", "remove it")
        return open_tokenizer(Path(data.tokenizer))
    training = data.training_texts(texts)
    if data.tokenizer == "characters":
        training = data.all_texts(texts) or training  # with validation texts: an unknown character could not be scored
    if data.vocab_size or not tokenizer_class(data.tokenizer).learns_vocabulary:
        return train_tokenizer(data.tokenizer, training, data.vocab_size, lowercase=data.lowercase)
    vocab_size = min(room or DEFAULT_VOCAB_SIZE, DEFAULT_VOCAB_SIZE)
    try:
        return train_tokenizer(data.tokenizer, training, vocab_size, lowercase=data.lowercase)
    except DataError as error:  # `room` is less than the tokenizer's minimum
        if vocab_size == DEFAULT_VOCAB_SIZE or error.place != "vocab_size":
            raise
        return train_tokenizer(data.tokenizer, training, DEFAULT_VOCAB_SIZE, lowercase=data.lowercase)


def resolve_spec(recipe: Recipe, tokenizer: Tokenizer | None) -> ModelSpec:
    """Return the specification of a recipe. Its vocabulary must hold all tokens and the ids that the objective adds."""
    source = recipe.spec
    if tokenizer is None:
        return open_spec(source)
    is_open = leaves_vocabulary_open(source)
    spec = open_spec({"vocab_size": tokenizer.vocab_size} | source if isinstance(source, dict) and is_open else source)
    length = recipe.sequence_length or spec.context_length
    num_ids = resolve_objective(recipe, spec).num_ids(tokenizer, length)
    if is_open:
        spec = spec.replace(vocab_size=num_ids)
    for field in ("vocab_size", "source_vocab_size"):
        size = getattr(spec, field, None)
        if size is not None and size < num_ids:
            cause = f"{size} is too small for the {num_ids} tokens of the tokenizer and the objective"
            raise SpecError(field, cause, f"use a smaller tokenizer, or raise the size: --set spec.{field}={num_ids}")
    return spec


def resolve_objective(recipe: Recipe, spec: ModelSpec) -> ObjectiveConfig:
    """Return the recipe's objective, or the first objective that suits the model and the data."""
    objective, data = recipe.objective, recipe.data
    if objective is not None and objective.suits(spec, data):
        return objective
    suitable = _suitable_objectives(spec, data)
    if objective is None and suitable:
        return suitable[0].parse({})
    name = f"{objective.kind} does not suit" if objective is not None else "no objective suits"
    cause = f"{name} a model of kind {spec.kind} with head {spec.head.kind} and data of kind {data.kind}"
    kinds: dict[str, Any] = Data.kinds
    suited = [kind for kind, other in kinds.items() if _suitable_objectives(spec, other.model_construct())]
    if suitable:
        remedy = f"use {enumeration((config.model_fields['kind'].default for config in suitable), 'or')}"
    else:
        few = f"data of kind {enumeration(suited, 'or')}" if len(suited) < 6 else "other data"
        model = f"a model that reads data of kind {data.kind}, such as --spec {data.preset}"
        remedy = f"use {model}, or {few if suited else 'another head'}"
    raise SpecError("objective", cause, remedy)


def _suitable_objectives(spec: ModelSpec, data: Data) -> list[type[ObjectiveConfig]]:
    configs: Iterable[Any] = ObjectiveConfig.kinds.values()
    return [config for config in configs if config.model_construct().suits(spec, data)]


def build_objective(
    recipe: Recipe,
    spec: ModelSpec,
    tokenizer: Tokenizer | None,
    texts: dict[str, str],
    template: ChatTemplate | None = None,
) -> Objective:
    """Build the objective of a run: its examples and its loss."""
    config = resolve_objective(recipe, spec)
    length = recipe.sequence_length or spec.context_length
    if length > spec.context_length:
        cause = f"{length} is more than the model's context of {spec.context_length}"
        raise SpecError("sequence_length", cause, "use shorter sequences or a model with a longer context")
    return config.build(
        ObjectiveInputs(spec, recipe.data, texts, tokenizer, recipe.batch_size, length, recipe.seed, template)
    )


def resolve_template(data: Data, tokenizer: Tokenizer | None, pretrained: Pretrained | None) -> ChatTemplate | None:
    """Return the chat template to save with the run, from the file that the data name or the pretrained model."""
    template = pretrained.template if pretrained else None
    if file := getattr(data, "template", ""):
        template = ChatTemplate(read_text(Path(file)), {})
    return None if template is None or tokenizer is None else with_tokens(template, tokenizer)


def with_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return a chat template with the tokenizer's special tokens as variables."""
    # written and read back, so that it is the template that the run directory will have
    with atomic.scratch_folder() as folder:
        tokenizer.save(folder)
        write_template(template, folder)
        return read_template(folder)


def class_names(objective: ObjectiveConfig | None, spec: ModelSpec, pretrained: Pretrained | None) -> tuple[str, ...]:
    labels: tuple[str, ...] | None = getattr(objective, "labels", None)
    if labels is None:
        return pretrained.labels if pretrained and spec.head == pretrained.model.spec.head else ()
    # numbered classes need no names
    return () if labels == tuple(map(str, range(len(labels)))) else labels


def _changed_image_processor(data: Data, pretrained: Pretrained | None) -> dict[str, Any] | None:
    # None if the pretrained model has the same
    processor: ImageProcessor | None = getattr(data, "image_processor", None)
    if processor is None or (pretrained is not None and processor == pretrained.image_processor()):
        return None
    return processor.contents()


def with_room_for(tokenizer: Tokenizer, spec: ModelSpec) -> ModelSpec:
    sizes = {name: getattr(spec, name, None) for name in ("vocab_size", "source_vocab_size")}
    return spec.replace(**{name: max(size, tokenizer.vocab_size) for name, size in sizes.items() if size is not None})


def _about_weights(source: Any) -> tuple[str, ...]:
    if isinstance(source, dict):
        return ()
    folder = Path(source)
    if not hub.is_name(folder) and not any(
        file for pattern in ("*.safetensors", "*.bin", "checkpoints/step-*") for file in folder.glob(pattern)
    ):
        return ()
    return (f"{source} has weights, which are not used: training starts from random ones; --from {source} uses them",)
