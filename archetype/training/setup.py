"""From a recipe to the state of a run: tokenizer, specification, objective and model, built anew or resumed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from archetype import spec as specs
from archetype.convert.source import open_spec
from archetype.errors import CheckpointError, DataError, SpecError
from archetype.io import atomic, hub
from archetype.io.tensors import Tensors, save
from archetype.io.text import read_text
from archetype.models import Model, build, build_on_meta
from archetype.nn.adapter import install
from archetype.nn.device import resolve_dtype
from archetype.runs import checkpoints
from archetype.runs.directory import AdaptedModel, Run, fill_from, read_run_spec, write_adapter, write_run_spec
from archetype.runs.lock import locked
from archetype.runs.origin import write_origin
from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer, trainable_kinds
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.chat_template import ChatTemplate, read_template, write_template
from archetype.tokenizers.registry import tokenizer_class
from archetype.training import metrics
from archetype.training.datasets import Data, TokenizedData
from archetype.training.defaults import Budget
from archetype.training.memory import check_memory
from archetype.training.objectives.base import Objective, ObjectiveConfig, ObjectiveInputs
from archetype.training.pretrained import Pretrained, take_over
from archetype.training.processes import ALONE, Processes
from archetype.training.provenance import check_origin, check_recipe, read_provenance, write_recipe
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.state import TrainState

TEXT_FILE = "text.txt"  # where a run keeps a text that came from no file
DEFAULT_VOCAB_SIZE = 4096


@dataclass(frozen=True)
class Setup:
    """A run before anything of it is written.

    Attributes:
        recipe: with what data, model and budget decide filled in.
        notes: what to say of the run when it starts.
        template: the model's chat template.
        labels: names of its classes, where they have any.
        pretrained: the model whose weights it begins with.
    """

    recipe: Recipe
    spec: specs.ModelSpec
    tokenizer: Tokenizer | None
    objective: Objective
    notes: tuple[str, ...]
    template: ChatTemplate | None
    labels: tuple[str, ...]
    pretrained: Pretrained | None

    def first_model(self, device: torch.device) -> tuple[Model, Recipe, tuple[str, ...]]:
        """The model that the run begins with, an adapter left out; the recipe, in which what is new learns; and notes.

        Args:
            device: where the model goes.
        """
        model = build(self.spec, self.recipe.seed, device)
        if self.pretrained is None:
            return model, self.recipe, self.notes
        return model, *_begin_from(self.pretrained, model, self.recipe, self.labels)


def prepare(
    folder: Path,
    recipe: Recipe,
    device: torch.device,
    text: str | None = None,
    force: bool = False,
    budget: Budget | None = None,
    pretrained: Pretrained | None = None,
    processes: Processes = ALONE,
) -> Setup:
    """Read the data and decide all that a run takes, and write nothing; see `start`."""
    for path in (str(folder), *recipe.data.files()):
        if any("\ud800" <= character <= "\udfff" for character in path):
            raise DataError(path, "its name is not UTF-8", "rename it")
    data = recipe.data.with_absolute_paths() if text is None else recipe.data.replace(text=(TEXT_FILE,))
    recipe = recipe.replace(dtype=resolve_dtype(recipe.dtype, device), data=data)
    texts = data.read_texts(folder) if text is None else {"text": text}
    notes = _about_weights(recipe.spec)
    tokenizer = pretrained.tokenizer if pretrained else None
    if pretrained is not None:
        notes = ()
        recipe = recipe.replace(spec=pretrained.model.spec.dump())
    elif recipe.adapter is not None:
        raise SpecError("adapter", "stands beside a trained model, and there is none", "name one with --from")
    tokenizer = tokenizer or build_tokenizer(data, texts)
    if recipe.add_tokens:
        if tokenizer is None:
            raise SpecError("add_tokens", "the model has no tokenizer to add tokens to", "leave it out")
        tokenizer = add_tokens(tokenizer, recipe.add_tokens)
        if pretrained is not None:
            recipe = recipe.replace(spec=with_room_for(tokenizer, pretrained.model.spec).dump())
    spec = resolve_spec(recipe, tokenizer)
    config = resolve_objective(recipe, spec)
    config, spec = config.resolve(spec, data, texts, pretrained.labels if pretrained else None)
    recipe = recipe.replace(objective=config)
    if recipe.add_tokens and pretrained and tokenizer and config.num_ids(tokenizer, 1) > tokenizer.vocab_size:
        cause = f"{config.kind} has ids of its own behind those of the tokenizer, which are trained already"
        raise SpecError("add_tokens", cause, "begin with a model whose tokenizer has them")
    if isinstance(data, TokenizedData):
        recipe = recipe.replace(sequence_length=recipe.sequence_length or spec.context_length)
    processes.check(recipe, spec)
    template = resolve_template(data, tokenizer, pretrained)
    objective = build_objective(recipe, spec, tokenizer, texts, template)
    if processes.is_alone and not force:
        check_memory(recipe, spec, objective, device)
    if budget:
        recipe = budget.fit(recipe, spec, objective, device)
    labels = class_names(recipe.objective, spec, pretrained)
    return Setup(recipe, spec, tokenizer, objective, notes, template, labels, pretrained)


def start(
    folder: Path,
    recipe: Recipe,
    device: torch.device,
    text: str | None = None,
    force: bool = False,
    budget: Budget | None = None,
    pretrained: Pretrained | None = None,
    processes: Processes = ALONE,
) -> TrainState:
    """Begin a new run.

    Args:
        folder: the run directory; must not exist, or be empty.
        recipe: how to train.
        device: where the model goes.
        text: what to learn from, kept in the run directory (absent: the files that the recipe names).
        force: begin even if a step is expected to take more memory than is free.
        budget: from which the number of steps follows (absent: the recipe says it).
        pretrained: a model whose weights and tokenizer the run begins with (absent: the recipe's, with random weights).
        processes: that share the work; the main one of them begins the run, and the others resume it.

    Raises:
        SpecError: parts of the recipe do not belong together.
        DataError: the data cannot be used, or there is too little of them.
    """
    atomic.check_absent(folder)
    for tracker in recipe.trackers:
        tracker.package()
    setup = prepare(folder, recipe, device, text, force, budget, pretrained, processes)
    spec, tokenizer, objective, labels = setup.spec, setup.tokenizer, setup.objective, setup.labels
    model, recipe, notes = setup.first_model(processes.building_device(setup.recipe, device))
    with atomic.new_folder(folder) as temporary:
        run = Run(temporary)
        if pretrained is not None:
            pretrained.save(temporary / "pretrained", model, tokenizer, labels)
            for file in (temporary / "pretrained").iterdir():
                file.rename(temporary / file.name)
            (temporary / "pretrained").rmdir()
            run.weights_file.unlink()  # they are the checkpoint of step 0
        if recipe.adapter is not None and pretrained is not None:
            install(model, recipe.adapter, recipe.seed)
            write_adapter(run, AdaptedModel(adapter=recipe.adapter, base=pretrained.source))
        write_run_spec(run, spec, recipe)
        write_recipe(run, recipe, spec, objective)
        if tokenizer is not None and not run.tokenizer_folder.is_dir():
            run.tokenizer_folder.mkdir()
            tokenizer.save(run.tokenizer_folder)
        if setup.template is not None:
            write_template(setup.template, run.tokenizer_folder)
        if pretrained is None and labels:
            write_origin(temporary, spec, None, labels)
        if text is not None:
            atomic.write_bytes(temporary / TEXT_FILE, text.encode())
        state = TrainState.build(run, recipe, tokenizer, objective, model)
        if prepared := objective.prepare(model, recipe.dtype):
            save(run.prepared_file, prepared)
        if pretrained is not None:
            state.save()
            state.background.wait()
    state.run, state.notes = Run(folder), notes
    return state


def class_names(
    objective: ObjectiveConfig | None, spec: specs.ModelSpec, pretrained: Pretrained | None
) -> tuple[str, ...]:
    """The names of the classes of a model; none where they have numbers only."""
    labels: tuple[str, ...] | None = getattr(objective, "labels", None)
    if labels is None:
        return pretrained.labels if pretrained and spec.head == pretrained.model.spec.head else ()
    return () if labels == tuple(map(str, range(len(labels)))) else labels


def with_room_for(tokenizer: Tokenizer, spec: specs.ModelSpec) -> specs.ModelSpec:
    """The same model with a row for every token."""
    sizes = {name: getattr(spec, name, None) for name in ("vocab_size", "source_vocab_size")}
    return spec.replace(**{name: max(size, tokenizer.vocab_size) for name, size in sizes.items() if size is not None})


def _begin_from(
    pretrained: Pretrained, model: Model, recipe: Recipe, labels: tuple[str, ...]
) -> tuple[Recipe, tuple[str, ...]]:
    """Give a model the weights to go on from; what is new learns whatever else does."""
    num_tokens = pretrained.tokenizer.vocab_size if pretrained.tokenizer and recipe.add_tokens else None
    tensors = take_over(model, pretrained.model, num_tokens, keeps_head=labels == pretrained.labels)
    new, wider = (sorted({name.rpartition(".")[0] for name in names}) for names in tensors)
    if (new or wider) and (recipe.trainable is not None or recipe.adapter is not None):
        recipe = recipe.replace(trainable=(*(recipe.trainable or ()), *new, *wider))
    weights = f"its weights but {', '.join(new)}, which begin at random," if new else "its weights"
    return recipe, (f"goes on from {pretrained.source}: {weights} and its tokenizer, with a new optimizer",)


def resume(
    folder: Path,
    device: torch.device,
    steps: int | None = None,
    allow_changes: bool = False,
    force: bool = False,
    sizes: Sequence[str] = (),
    processes: Processes = ALONE,
) -> TrainState:
    """Go on with a run where its newest checkpoint left it, or at its start where it has none yet.

    Args:
        folder: the run directory.
        device: where the model goes.
        steps: how many the whole run takes from now on (absent: as before).
        allow_changes: go on although recipe or data are not those that the run began with.
        force: go on even if a step is expected to take more memory than is free.
        sizes: of `parallel` in place of the recipe's, such as parallel.shard=4.
        processes: that share the work; what is written is by the main one.

    Raises:
        CheckpointError: the folder is not a run, its checkpoint is damaged, or its architecture, data or recipe have
            changed.
    """
    run = Run(folder)
    if not run.exists:
        raise CheckpointError(str(folder), "is not a run directory", "give the folder that `archetype train` made")
    if processes.is_main:
        with locked(folder):
            pass  # another process is told now, not after all the reading
    spec, recipe = read_run_spec(run), read_recipe(run.recipe_file)  # says first which extension is missing
    began = read_provenance(run)
    if not allow_changes:
        check_recipe(run, recipe, began)
    tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    if tokenizer is None and isinstance(recipe.data, TokenizedData):
        raise CheckpointError(str(run.tokenizer_folder), "is missing", "restore the run's tokenizer")
    template = read_template(run.tokenizer_folder) if tokenizer is not None else None
    objective = build_objective(recipe, spec, tokenizer, recipe.data.read_texts(folder), template)
    if run.prepared_file.is_file():
        tensors = Tensors.single(run.prepared_file)
        objective.restore({name: tensors.mapped(name).clone() for name in tensors.names()})
    damages: list[str] = []
    checkpoint = checkpoints.latest(run.checkpoints, damages.append)
    for origin in (began.model_dump() if began else None, checkpoint.manifest if checkpoint else None):
        if origin is not None:
            check_origin(run, recipe, spec, objective, origin, allow_changes)
    step = checkpoint.step if checkpoint else 0
    notes = (*damages, *(() if steps is None else (describe_more_steps(recipe, step, steps),)))
    recipe = recipe.replace(steps=steps or recipe.steps, parallel=recipe.parallel.resized(sizes))
    processes.check(recipe, spec)
    if processes.is_alone and not force:
        check_memory(recipe, spec, objective, device)
    if damages and processes.is_main:
        with locked(folder):
            checkpoints.set_aside(run.checkpoints, step)
    if steps is not None or allow_changes or sizes:
        with locked(folder):
            write_recipe(run, recipe, spec, objective)
            if steps is not None and checkpoint is not None:  # which has the same weights
                run.weights_file.unlink(missing_ok=True)
    if checkpoint is None:
        model = build(spec, recipe.seed, processes.building_device(recipe, device))
    else:
        building_device = processes.building_device(recipe, device)
        model = _trainable_model(checkpoint.weights_file, spec, recipe.adapter, building_device)
    state = TrainState.build(run, recipe, tokenizer, objective, model)
    if checkpoint is not None:
        state.restore(checkpoint)
    state.notes = notes
    state.remember([line for line in metrics.read(run.metrics_file) if line["step"] <= step])
    return state


def _about_weights(source: Any) -> tuple[str, ...]:
    """What to say where the specification of a folder is taken without its weights."""
    if isinstance(source, dict):
        return ()
    folder = Path(source)
    if not hub.is_name(folder) and not any(
        name for pattern in ("*.safetensors", "*.bin", "checkpoints/step-*") for name in folder.glob(pattern)
    ):
        return ()
    return (f"{source} has weights, which are not used: training starts from random ones; --from {source} uses them",)


def describe_more_steps(recipe: Recipe, step: int, steps: int) -> str:
    """What it means for the schedule that a run at `step` takes `steps` in all.

    Raises:
        SpecError: it has taken as many already.
    """
    if steps <= step:
        raise SpecError("steps", f"the run has taken {step} steps already", "give more")
    peak, learning_rate = recipe.optimizer.learning_rate, recipe.schedule.learning_rate
    before, after = learning_rate(peak, max(0, step - 1), recipe.steps), learning_rate(peak, step, steps)
    return f"the schedule now spans {steps} steps: the learning rate goes on from {after:.2g}, not {before:.2g}"


def build_tokenizer(data: Data, texts: dict[str, str]) -> Tokenizer | None:
    """The tokenizer that the data name, trained on what is not held out where it is a kind; None for images."""
    if not isinstance(data, TokenizedData):
        return None
    if data.tokenizer not in trainable_kinds():
        return open_tokenizer(Path(data.tokenizer))
    training = data.training_texts(texts)
    if data.tokenizer == "characters":
        training = list(texts.values()) or training  # the alphabet: an unknown character could not be scored
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
    recipe: Recipe,
    spec: specs.ModelSpec,
    tokenizer: Tokenizer | None,
    texts: dict[str, str],
    template: ChatTemplate | None = None,
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
    return config.build(
        ObjectiveInputs(spec, recipe.data, texts, tokenizer, recipe.batch_size, length, recipe.seed, template)
    )


def resolve_template(data: Data, tokenizer: Tokenizer | None, pretrained: Pretrained | None) -> ChatTemplate | None:
    """The chat template of a run as its folder will have it: the file that the data name, or the model's."""
    template = pretrained.template if pretrained else None
    if file := getattr(data, "template", ""):
        template = ChatTemplate(read_text(Path(file)), {})
    if template is None or tokenizer is None:
        return None
    with TemporaryDirectory() as folder:  # beside the tokenizer, whose tokens it may name
        tokenizer.save(Path(folder))
        write_template(template, Path(folder))
        return read_template(Path(folder))


def _trainable_model(
    weights: Path, spec: specs.ModelSpec, adapter: specs.Adapter | None, device: torch.device
) -> Model:
    """A model with memory of its own: training writes into it, and the file must not change."""
    model = build_on_meta(spec)
    if adapter is not None:
        install(model, adapter)
    fill_from(model, weights)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone().to(device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.clone().to(device))
    return model
