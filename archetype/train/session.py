"""Everything that a training loop works on, made anew from a recipe or restored from a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import archetype
from archetype import spec as specs
from archetype.checkpoint import durable
from archetype.checkpoint import training as checkpoints
from archetype.checkpoint.run import Run, fill_from, read_run_spec, write_run_spec
from archetype.data.batches import Batches
from archetype.data.corpus import Corpus, corpus, split
from archetype.data.text import read_text
from archetype.data.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from archetype.errors import CheckpointError, SpecError
from archetype.families.source import open_spec
from archetype.model import Model, build, skeleton
from archetype.train.optimizer import build_optimizer, restore_optimizer
from archetype.train.precision import resolved
from archetype.train.recipe import Recipe, TokenizerKind, read_recipe, recipe_yaml

KINDS: tuple[TokenizerKind, ...] = ("bytes", "characters", "words", "bpe", "byte_bpe")
DEFAULT_VOCABULARY = 4096
OWN_TEXT = "text.txt"  # where a run keeps a text that came from no file


@dataclass
class Session:
    """The state of a run in memory; `step` counts the optimizer steps taken."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer
    corpus: Corpus
    model: Model
    optimizer: torch.optim.Optimizer
    batches: Batches
    dtype: str
    step: int = 0

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embedding.token.weight.device

    @property
    def length(self) -> int:
        """Tokens of each row."""
        return self.batches.length

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of its origin."""
        return {
            "spec": specs.fingerprint(self.model.spec),
            "data": self.corpus.fingerprint,
            "versions": {"archetype": archetype.__version__, "torch": torch.__version__},
        }


def start(folder: Path, recipe: Recipe, device: torch.device, text: str | None = None) -> Session:
    """A new run in a folder that must not exist, or be empty.

    Args:
        text: what to learn from, kept in the run directory (absent: the files that the recipe names).
    """
    durable.refuse_existing(folder)
    files = _absolute(recipe.data.text) if text is None else (OWN_TEXT,)
    recipe = recipe.changed(dtype=resolved(recipe.dtype, device), data=recipe.data.changed(text=files))
    kept, text = text, read_texts(recipe, folder) if text is None else text
    tokenizer = tokenizer_for(recipe, text)
    spec = spec_for(recipe, tokenizer)
    tokens = corpus(text, tokenizer, recipe.data.validation)
    batches = _batches(recipe, spec, tokens)
    model = build(spec, recipe.seed, device)
    with durable.new_folder(folder) as temporary:
        made = Run(temporary)
        write_run_spec(made, spec)
        durable.write_bytes(made.recipe_file, recipe_yaml(recipe).encode())
        made.tokenizer_folder.mkdir()
        tokenizer.save(made.tokenizer_folder)
        if kept is not None:
            durable.write_bytes(temporary / OWN_TEXT, kept.encode())
    return _session(Run(folder), recipe, tokenizer, tokens, model, batches)


def resume(folder: Path, device: torch.device) -> Session:
    """A run as its newest checkpoint left it, or at its start where it has none yet."""
    run = Run(folder)
    if not run.exists:
        raise CheckpointError(str(folder), "is not a run directory", "give the folder that `archetype train` made")
    recipe, spec = read_recipe(run.recipe_file), read_run_spec(run)
    tokenizer = open_tokenizer(run.tokenizer_folder)
    tokens = corpus(read_texts(recipe, folder), tokenizer, recipe.data.validation)
    batches = _batches(recipe, spec, tokens)
    checkpoint = checkpoints.latest(run.checkpoints)
    if checkpoint is None:
        return _session(run, recipe, tokenizer, tokens, build(spec, recipe.seed, device), batches)
    if checkpoint.manifest.get("spec") != specs.fingerprint(spec):
        cause = "the architecture is not the one that this run began with"
        raise CheckpointError(str(run.spec_file), cause, "restore it, or start a new run")
    if checkpoint.manifest.get("data") != tokens.fingerprint:
        cause = "the text is not the one that this run began with"
        raise CheckpointError(", ".join(recipe.data.text), cause, "restore it, or start a new run")
    model = _trainable(checkpoint.weights_file, spec, device)
    session = _session(run, recipe, tokenizer, tokens, model, batches)
    restore_optimizer(model, session.optimizer, checkpoint.optimizer())
    session.step = checkpoint.step
    return session


def read_texts(recipe: Recipe, folder: Path) -> str:
    """All texts of a recipe, one after the other; a run's own text has a path within its folder."""
    if not recipe.data.text:
        raise SpecError("data.text", "no text is given", "name a file with --text, or in the recipe")
    return "".join(read_text(folder / file) for file in recipe.data.text)


def tokenizer_for(recipe: Recipe, text: str) -> Tokenizer:
    """The tokenizer that a recipe names, trained on what is not held out where it is to be trained."""
    name = recipe.data.tokenizer
    if name in KINDS:
        training, _ = split(text, recipe.data.validation)
        if name == "characters":
            training = text  # the alphabet alone; a held-out character that is unknown could not be scored
        trained = name in ("bpe", "byte_bpe", "words")
        return train_tokenizer(name, training, (recipe.data.vocab_size or DEFAULT_VOCABULARY) if trained else None)
    return open_tokenizer(Path(name))


def spec_for(recipe: Recipe, tokenizer: Tokenizer) -> specs.ModelSpec:
    """The specification that a recipe names, with room for every token."""
    given = {"vocab_size": tokenizer.vocab_size} | recipe.spec if isinstance(recipe.spec, dict) else recipe.spec
    spec = open_spec(given)
    if spec.vocab_size < tokenizer.vocab_size:
        cause = f"{spec.vocab_size} is too small for the tokenizer's {tokenizer.vocab_size} tokens"
        raise SpecError("vocab_size", cause, "raise it, leave it out of the recipe's spec, or use a smaller tokenizer")
    return spec


def _session(
    run: Run, recipe: Recipe, tokenizer: Tokenizer, tokens: Corpus, model: Model, batches: Batches
) -> Session:
    model.train()
    optimizer = build_optimizer(model, recipe.optimizer)
    return Session(run, recipe, tokenizer, tokens, model, optimizer, batches, recipe.dtype)


def _batches(recipe: Recipe, spec: specs.ModelSpec, tokens: Corpus) -> Batches:
    length = recipe.length or spec.context_length
    if length > spec.context_length:
        cause = f"{length} is more than the model's context of {spec.context_length}"
        raise SpecError("length", cause, "use a shorter length or a longer context")
    return Batches(tokens.training, recipe.batch_size, length, recipe.seed)


def _trainable(weights: Path, spec: specs.ModelSpec, device: torch.device) -> Model:
    """A model with memory of its own: training writes into it, and the file must not change."""
    model = skeleton(spec)
    fill_from(model, weights)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone().to(device)))
    return model


def _absolute(files: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that still hold when the run is resumed from another folder."""
    return tuple(str(Path(file).absolute()) for file in files)
