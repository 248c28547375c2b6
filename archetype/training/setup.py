"""From a recipe to the state of a run: tokenizer, specification, objective and model, built anew or resumed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from archetype import spec as specs
from archetype.convert.source import open_spec
from archetype.errors import CheckpointError, SpecError
from archetype.io import atomic
from archetype.models import Model, build, build_on_meta
from archetype.nn.device import resolve_dtype
from archetype.runs import checkpoints
from archetype.runs.directory import Run, fill_from, read_run_spec, write_run_spec
from archetype.spec import to_yaml
from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer, trainable_kinds
from archetype.tokenizers.registry import tokenizer_class
from archetype.training.datasets import Data, TokenizedData
from archetype.training.objectives.base import Objective, ObjectiveConfig, ObjectiveInputs
from archetype.training.optimizers import restore_optimizer
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.state import TrainState

TEXT_FILE = "text.txt"  # where a run keeps a text that came from no file
DEFAULT_VOCAB_SIZE = 4096


def start(folder: Path, recipe: Recipe, device: torch.device, text: str | None = None) -> TrainState:
    """Begin a new run.

    Args:
        folder: the run directory; must not exist, or be empty.
        recipe: how to train.
        device: where the model goes.
        text: what to learn from, kept in the run directory (absent: the files that the recipe names).

    Raises:
        SpecError: parts of the recipe do not belong together.
        DataError: the data cannot be used, or there is too little of them.
    """
    atomic.check_absent(folder)
    data = recipe.data.with_absolute_paths() if text is None else recipe.data.replace(text=(TEXT_FILE,))
    recipe = recipe.replace(dtype=resolve_dtype(recipe.dtype, device), data=data)
    texts = data.read_texts(folder) if text is None else {"text": text}
    tokenizer = build_tokenizer(data, texts)
    spec = resolve_spec(recipe, tokenizer)
    recipe = recipe.replace(objective=resolve_objective(recipe, spec))
    objective = build_objective(recipe, spec, tokenizer, texts)
    model = build(spec, recipe.seed, device)
    with atomic.new_folder(folder) as temporary:
        run = Run(temporary)
        write_run_spec(run, spec, recipe)
        atomic.write_bytes(run.recipe_file, to_yaml(recipe).encode())
        if tokenizer is not None:
            run.tokenizer_folder.mkdir()
            tokenizer.save(run.tokenizer_folder)
        if text is not None:
            atomic.write_bytes(temporary / TEXT_FILE, text.encode())
    return TrainState.build(Run(folder), recipe, tokenizer, objective, model)


def resume(folder: Path, device: torch.device) -> TrainState:
    """Go on with a run where its newest checkpoint left it, or at its start where it has none yet.

    Args:
        folder: the run directory.
        device: where the model goes.

    Raises:
        CheckpointError: the folder is not a run, its checkpoint is damaged, or its architecture or data have changed.
    """
    run = Run(folder)
    if not run.exists:
        raise CheckpointError(str(folder), "is not a run directory", "give the folder that `archetype train` made")
    spec, recipe = read_run_spec(run), read_recipe(run.recipe_file)  # says first which extension is missing
    tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    objective = build_objective(recipe, spec, tokenizer, recipe.data.read_texts(folder))
    checkpoint = checkpoints.latest(run.checkpoints)
    if checkpoint is None:
        return TrainState.build(run, recipe, tokenizer, objective, build(spec, recipe.seed, device))
    if checkpoint.manifest.get("spec") not in (specs.fingerprint(spec), specs.fingerprint(spec, earlier=True)):
        cause = "the architecture is not the one that this run began with"
        raise CheckpointError(str(run.spec_file), cause, "restore it, or start a new run")
    if checkpoint.manifest.get("data") != objective.fingerprint:
        cause = "the data are not those that this run began with"
        raise CheckpointError(", ".join(recipe.data.files()), cause, "restore them, or start a new run")
    model = _trainable_model(checkpoint.weights_file, spec, device)
    state = TrainState.build(run, recipe, tokenizer, objective, model)
    restore_optimizer(model, state.optimizer, checkpoint.optimizer())
    state.step = checkpoint.step
    return state


def build_tokenizer(data: Data, texts: dict[str, str]) -> Tokenizer | None:
    """The tokenizer that the data name, trained on what is not held out where it is a kind; None for images."""
    if not isinstance(data, TokenizedData):
        return None
    if data.tokenizer not in trainable_kinds():
        return open_tokenizer(Path(data.tokenizer))
    training = data.training_texts(texts)
    if data.tokenizer == "characters":
        training = list(texts.values())  # the alphabet alone; a held-out character that is unknown could not be scored
    learns_vocabulary = tokenizer_class(data.tokenizer).learns_vocabulary
    vocab_size = (data.vocab_size or DEFAULT_VOCAB_SIZE) if learns_vocabulary else None
    return train_tokenizer(data.tokenizer, training, vocab_size, lowercase=data.lowercase)


def resolve_spec(recipe: Recipe, tokenizer: Tokenizer | None) -> specs.ModelSpec:
    """The specification that a recipe names, with an id for every token and for what the objective adds to them.

    Raises:
        SpecError: its vocabulary is too small.
    """
    source = recipe.spec
    if tokenizer is None:
        return open_spec(source)
    is_open = isinstance(source, dict) and "vocab_size" not in source and source.get("kind") != "vision_encoder"
    spec = open_spec({"vocab_size": tokenizer.vocab_size} | source if isinstance(source, dict) and is_open else source)
    length = recipe.sequence_length or spec.context_length
    num_ids = resolve_objective(recipe, spec).num_ids(tokenizer, length)
    if is_open:
        spec = spec.replace(vocab_size=num_ids)
    for field in ("vocab_size", "source_vocab_size"):
        size = getattr(spec, field, None)
        if size is not None and size < num_ids:
            cause = f"{size} is too small for the {num_ids} tokens of the tokenizer and the objective"
            raise SpecError(field, cause, "raise it, leave it out of the recipe's spec, or use a smaller tokenizer")
    return spec


def resolve_objective(recipe: Recipe, spec: specs.ModelSpec) -> ObjectiveConfig:
    """The recipe's objective, or the first that suits the model and the data.

    Raises:
        SpecError: it does not suit them, or none does.
    """
    objective, data = recipe.objective, recipe.data
    if objective is not None and objective.suits(spec, data):
        return objective
    suitable = _suitable_objectives(spec, data)
    if objective is None and suitable:
        return suitable[0].parse({})
    name = f"{objective.kind} does not suit" if objective is not None else "no objective suits"
    cause = f"{name} a model of kind {spec.kind} with head {spec.head.kind} and data of kind {data.kind}"
    kinds: dict[str, Any] = Data.kinds
    others = [kind for kind, other in kinds.items() if _suitable_objectives(spec, other.model_construct())]
    if suitable:
        remedy = f"use {' or '.join(config.model_fields['kind'].default for config in suitable)}"
    else:
        remedy = f"use data of kind {' or '.join(others)}" if others else "use another head"
    raise SpecError("objective", cause, remedy)


def _suitable_objectives(spec: specs.ModelSpec, data: Data) -> list[type[ObjectiveConfig]]:
    configs: Iterable[Any] = ObjectiveConfig.kinds.values()
    return [config for config in configs if config.model_construct().suits(spec, data)]


def build_objective(
    recipe: Recipe, spec: specs.ModelSpec, tokenizer: Tokenizer | None, texts: dict[str, str]
) -> Objective:
    """The examples of a run and its loss.

    Raises:
        SpecError: the objective does not suit the model or the data.
        DataError: there is too little to learn from.
    """
    config = resolve_objective(recipe, spec)
    length = recipe.sequence_length or spec.context_length
    if length > spec.context_length:
        cause = f"{length} is more than the model's context of {spec.context_length}"
        raise SpecError("sequence_length", cause, "use a shorter one or a longer context")
    return config.build(ObjectiveInputs(spec, recipe.data, texts, tokenizer, recipe.batch_size, length, recipe.seed))


def _trainable_model(weights: Path, spec: specs.ModelSpec, device: torch.device) -> Model:
    """A model with memory of its own: training writes into it, and the file must not change."""
    model = build_on_meta(spec)
    fill_from(model, weights)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone().to(device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.clone().to(device))
    return model
