"""Everything that a training loop works on, made anew from a recipe or restored from a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import archetype
from archetype import spec as specs
from archetype.errors import CheckpointError
from archetype.io import atomic
from archetype.models import Model, build, build_on_meta
from archetype.runs import checkpoints as checkpoints
from archetype.runs.directory import Run, fill_from, read_run_spec, write_run_spec
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.train.objective import Task
from archetype.train.optimizers import build_optimizer, restore_optimizer
from archetype.train.precision import resolved
from archetype.train.recipe import Data, Pairs, Pictures, Recipe, Text, read_recipe, recipe_yaml
from archetype.train.setup import objective_for, read_texts, spec_for, task_for, tokenizer_for

OWN_TEXT = "text.txt"  # where a run keeps a text that came from no file


@dataclass
class Session:
    """The state of a run in memory; `step` counts the optimizer steps taken."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer | None
    task: Task
    model: Model
    optimizer: torch.optim.Optimizer
    dtype: str
    step: int = 0

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of its origin."""
        return {
            "spec": specs.fingerprint(self.model.spec),
            "data": self.task.fingerprint,
            "versions": {"archetype": archetype.__version__, "torch": torch.__version__},
        }


def start(folder: Path, recipe: Recipe, device: torch.device, text: str | None = None) -> Session:
    """A new run in a folder that must not exist, or be empty.

    Args:
        text: what to learn from, kept in the run directory (absent: the files that the recipe names).
    """
    atomic.check_absent(folder)
    data = _absolute(recipe.data) if text is None else recipe.data.replace(text=(OWN_TEXT,))
    recipe = recipe.replace(dtype=resolved(recipe.dtype, device), data=data)
    texts = read_texts(recipe, folder) if text is None else {"text": text}
    tokenizer = tokenizer_for(recipe, texts)
    spec = spec_for(recipe, tokenizer)
    recipe = recipe.replace(objective=objective_for(recipe, spec))
    task = task_for(recipe, spec, tokenizer, texts)
    model = build(spec, recipe.seed, device)
    with atomic.new_folder(folder) as temporary:
        made = Run(temporary)
        write_run_spec(made, spec)
        atomic.write_bytes(made.recipe_file, recipe_yaml(recipe).encode())
        if tokenizer is not None:
            made.tokenizer_folder.mkdir()
            tokenizer.save(made.tokenizer_folder)
        if text is not None:
            atomic.write_bytes(temporary / OWN_TEXT, text.encode())
    return _session(Run(folder), recipe, tokenizer, task, model)


def resume(folder: Path, device: torch.device) -> Session:
    """A run as its newest checkpoint left it, or at its start where it has none yet."""
    run = Run(folder)
    if not run.exists:
        raise CheckpointError(str(folder), "is not a run directory", "give the folder that `archetype train` made")
    recipe, spec = read_recipe(run.recipe_file), read_run_spec(run)
    tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    task = task_for(recipe, spec, tokenizer, read_texts(recipe, folder))
    checkpoint = checkpoints.latest(run.checkpoints)
    if checkpoint is None:
        return _session(run, recipe, tokenizer, task, build(spec, recipe.seed, device))
    if checkpoint.manifest.get("spec") != specs.fingerprint(spec):
        cause = "the architecture is not the one that this run began with"
        raise CheckpointError(str(run.spec_file), cause, "restore it, or start a new run")
    if checkpoint.manifest.get("data") != task.fingerprint:
        cause = "the data are not those that this run began with"
        raise CheckpointError(", ".join(_files(recipe.data)), cause, "restore them, or start a new run")
    model = _trainable(checkpoint.weights_file, spec, device)
    session = _session(run, recipe, tokenizer, task, model)
    restore_optimizer(model, session.optimizer, checkpoint.optimizer())
    session.step = checkpoint.step
    return session


def _session(run: Run, recipe: Recipe, tokenizer: Tokenizer | None, task: Task, model: Model) -> Session:
    model.train()
    optimizer = build_optimizer(model, recipe.optimizer)
    return Session(run, recipe, tokenizer, task, model, optimizer, recipe.dtype)


def _trainable(weights: Path, spec: specs.ModelSpec, device: torch.device) -> Model:
    """A model with memory of its own: training writes into it, and the file must not change."""
    model = build_on_meta(spec)
    fill_from(model, weights)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone().to(device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.clone().to(device))
    return model


def _files(data: Data) -> tuple[str, ...]:
    match data:
        case Text(text=files):
            return files
        case Pairs(source=source, target=target):
            return (*source, *target)
        case Pictures(file=file):
            return (file,)


def _absolute(data: Data) -> Data:
    """Paths that still hold when the run is resumed from another folder."""

    def absolute(files: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Path(file).absolute()) if file else file for file in files)

    match data:
        case Text(text=files):
            return data.replace(text=absolute(files))
        case Pairs(source=source, target=target):
            return data.replace(source=absolute(source), target=absolute(target))
        case Pictures(file=file):
            return data.replace(file=absolute((file,))[0])
