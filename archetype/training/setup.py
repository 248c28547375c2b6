"""Start or resume a training run."""

from collections.abc import Sequence
from pathlib import Path

import torch

from archetype.convert.sentence_transformers.files import write_prompts
from archetype.data.skipping import skipping
from archetype.errors import CheckpointError, SpecError
from archetype.io import atomic
from archetype.io.lock import locked
from archetype.io.tensors import Tensors, save
from archetype.models.build import Model, build, build_on_meta
from archetype.models.spec import ModelSpec
from archetype.parts.adapter.module import install
from archetype.parts.adapter.spec import Adapter
from archetype.runs import checkpoints
from archetype.runs.directory import AdaptedModel, Run, fill_from, read_run_spec, write_adapter, write_run_spec
from archetype.runs.extensions import refuse_changes, write_extensions
from archetype.runs.origin import write_origin
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.chat_template import read_template, write_template
from archetype.training import metrics
from archetype.training.budget import Budget
from archetype.training.datasets import TokenizedData
from archetype.training.memory import check_memory
from archetype.training.objectives.base import Objective
from archetype.training.pretrained import Pretrained, take_over
from archetype.training.processes import ALONE, Processes
from archetype.training.provenance import check_data, check_recipe, check_spec, noting, read_provenance, write_recipe
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.resolve import TEXT_FILE, ResolvedRecipe, build_objective, resolve_recipe
from archetype.training.state import TrainState
from archetype.training.teacher.loss import OpenTeacher, TeacherLoss


def start(
    folder: Path,
    recipe: Recipe,
    device: torch.device,
    text: str | None = None,
    force: bool = False,
    budget: Budget | None = None,
    pretrained: Pretrained | None = None,
    processes: Processes = ALONE,
    open_teacher: OpenTeacher | None = None,
) -> TrainState:
    """Start a new run.

    Args:
        folder: run directory, which must not exist or be empty.
        text: training text to save in the run directory (default: the files that the recipe names).
        force: start even if the estimated memory of a step exceeds free memory.
        budget: budget that determines the number of steps (default: the recipe's steps).
        pretrained: initial weights and tokenizer (default: the recipe's model with random weights).
        processes: processes that train together; the main process starts the run, and the others resume it.
        open_teacher: loads the recipe's teacher, if it has one.

    Raises:
        ArchetypeError: fields of the recipe are incompatible, or the data are invalid or too few.
    """
    # refused before the data are read
    atomic.check_absent(folder)
    for tracker in recipe.trackers:
        tracker.package()
    resolved = resolve_recipe(
        folder, recipe, device, text, force, budget, pretrained, processes, open_teacher=open_teacher
    )
    spec, tokenizer, objective = resolved.spec, resolved.tokenizer, resolved.objective
    model, recipe, notes = first_model(resolved, processes.building_device(resolved.recipe, device))
    # the run directory appears under its name only when it is complete
    with atomic.new_folder(folder) as temporary:
        run = Run(temporary)
        if pretrained is not None:
            _write_pretrained(run, pretrained, model, resolved)
        if recipe.adapter is not None and pretrained is not None:
            install(model, recipe.adapter, recipe.seed)
            write_adapter(run, AdaptedModel(adapter=recipe.adapter, base=pretrained.source))
        write_run_spec(run, spec, recipe)
        write_recipe(run, recipe, spec, objective, resolved.skipped)
        if tokenizer is not None and not run.tokenizer_folder.is_dir():
            run.tokenizer_folder.mkdir()
            tokenizer.save(run.tokenizer_folder)
        if resolved.template is not None:
            write_template(resolved.template, run.tokenizer_folder)
        if pretrained is None:
            write_origin(temporary, spec, None, resolved.labels, resolved.image_processor)
        if recipe.objective is not None and recipe.objective.prompts:
            write_prompts(recipe.objective.prompts, run.sentence_folder)
        if text is not None:
            atomic.write_bytes(temporary / TEXT_FILE, text.encode())
        state = TrainState.build(run, recipe, tokenizer, objective, model)
        # such as a reference's log-probabilities: computed with the initial weights, so they must be stored now
        if prepared := objective.prepare(model, recipe.dtype):
            save(run.prepared_file, prepared)
        if pretrained is not None:
            state.save()
            # before the folder is renamed
            state.background.wait()
    state.run, state.notes = Run(folder), (*notes, *resolved.skipped.notes())
    return state


def _write_pretrained(run: Run, pretrained: Pretrained, model: Model, resolved: ResolvedRecipe) -> None:
    # all files except the weights, which become the checkpoint of step 0
    folder = run.folder / "pretrained"
    pretrained.save(folder, model, resolved.tokenizer, resolved.labels, resolved.image_processor)
    for file in folder.iterdir():
        file.rename(run.folder / file.name)
    folder.rmdir()
    run.weights_file.unlink()


def resume(
    folder: Path,
    device: torch.device,
    steps: int | None = None,
    allow_changes: bool = False,
    force: bool = False,
    sizes: Sequence[str] = (),
    processes: Processes = ALONE,
    open_teacher: OpenTeacher | None = None,
) -> TrainState:
    """Resume a run from its newest checkpoint, or from the start if it has no checkpoint.

    Args:
        steps: new total number of steps (default: unchanged).
        allow_changes: resume although recipe, data or extensions have changed.
        force: resume even if the estimated memory of a step exceeds free memory.
        sizes: fields of `parallel` that override the recipe's, such as parallel.shard=4.
        processes: processes that train together; only the main process writes.
        open_teacher: loads the recipe's teacher, if it has one.

    Raises:
        CheckpointError: the folder is not a run, its checkpoint is damaged, or its architecture, data, recipe or
            extensions have changed.
    """
    run = Run(folder)
    if not run.exists:
        raise CheckpointError(str(folder), "is not a run directory", "pass the folder that `archetype train` made")
    if processes.is_main:
        with locked(folder):
            pass  # refuse a second process now, before reading the data
    changes: dict[str, None] | None = {} if allow_changes else None
    with noting(changes):
        refuse_changes(folder)
    spec = read_run_spec(run)  # before the recipe: names an extension that is missing
    recipe = read_recipe(run.recipe_file)
    began = read_provenance(run)
    with noting(changes):
        check_recipe(run, recipe, began)
    with skipping(getattr(recipe.data, "skip_bad", 0)) as skipped:
        tokenizer, objective = _read_objective(run, recipe, spec)
    if recipe.teacher is not None:
        objective.teacher = TeacherLoss.open(recipe, spec, tokenizer, objective, device, open_teacher)
    damages: list[str] = []
    checkpoint = checkpoints.latest(run.checkpoints, damages.append)
    # the run's start and its newest checkpoint: a recipe may have been changed, with permission, in between
    for origin in (began.model_dump() if began else None, checkpoint.manifest if checkpoint else None):
        if origin is not None:
            check_spec(run, spec, origin)
            with noting(changes):
                check_data(recipe, objective, origin)
    step = checkpoint.step if checkpoint else 0
    changed = [f"after step {step}, {change}" for change in changes or ()]
    notes = (*damages, *changed, *(() if steps is None else (describe_more_steps(recipe, step, steps),)))
    recipe = recipe.replace(steps=steps or recipe.steps, parallel=recipe.parallel.resized(sizes))
    # with the sizes of this start, which may differ from the recipe's: shards are cut again
    processes.check(recipe, spec)
    if processes.is_alone and not force:
        check_memory(recipe, spec, objective, device, "--allow-changes with micro_batch_size: {} in its recipe.yaml")
    if damages and processes.is_main:
        with locked(folder):
            # the loop refuses to train if a folder of a later step exists
            checkpoints.set_aside(run.checkpoints, step)
    if steps is not None or allow_changes or sizes:
        with locked(folder):
            write_recipe(run, recipe, spec, objective, skipped, (*(began.changes if began else ()), *changed))
            write_extensions(folder, [spec, recipe])
            if steps is not None and checkpoint is not None:  # which has the same weights
                run.weights_file.unlink(missing_ok=True)
    building_device = processes.building_device(recipe, device)
    if checkpoint is None:
        model = build(spec, recipe.seed, building_device)
    else:
        model = _trainable_model(checkpoint.weights_file, spec, recipe.adapter, objective, building_device)
    state = TrainState.build(run, recipe, tokenizer, objective, model)
    if checkpoint is not None:
        state.restore(checkpoint)
    state.notes = notes
    state.remember([line for line in metrics.read(run.metrics_file) if line["step"] <= step])
    return state


def _read_objective(run: Run, recipe: Recipe, spec: ModelSpec) -> tuple[Tokenizer | None, Objective]:
    tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    if tokenizer is None and isinstance(recipe.data, TokenizedData):
        raise CheckpointError(str(run.tokenizer_folder), "is missing", "restore the run's tokenizer")
    template = read_template(run.tokenizer_folder) if tokenizer is not None else None
    objective = build_objective(recipe, spec, tokenizer, recipe.data.read_texts(run.folder), template)
    if run.prepared_file.is_file():
        tensors = Tensors.single(run.prepared_file)
        objective.restore({name: tensors.mapped(name).clone() for name in tensors.names()})
    return tokenizer, objective


def first_model(resolved: ResolvedRecipe, device: torch.device) -> tuple[Model, Recipe, tuple[str, ...]]:
    """Build the initial model without adapter. Return model, recipe (where new weights are trainable) and notes.

    The model is on `device`, or on the CPU instead of the meta device if its weights are copied or used.
    """
    prepares = type(resolved.objective).prepare is not Objective.prepare
    if device.type == "meta" and (prepares or resolved.pretrained is not None):
        device = torch.device("cpu")
    model = build(resolved.spec, resolved.recipe.seed, device)
    if resolved.pretrained is None:
        return model, resolved.recipe, resolved.notes
    return model, *_begin_from(resolved.pretrained, model, resolved.recipe, resolved.labels)


def _begin_from(
    pretrained: Pretrained, model: Model, recipe: Recipe, labels: tuple[str, ...]
) -> tuple[Recipe, tuple[str, ...]]:
    num_tokens = pretrained.tokenizer.vocab_size if pretrained.tokenizer and recipe.add_tokens else None
    tensors = take_over(model, pretrained.model, num_tokens, keeps_head=labels == pretrained.labels)
    new, wider = (sorted({name.rpartition(".")[0] for name in names}) for names in tensors)
    # new heads are random and new rows a mean, so both are trained even if the rest is frozen
    if (new or wider) and (recipe.trainable is not None or recipe.adapter is not None):
        recipe = recipe.replace(trainable=(*(recipe.trainable or ()), *new, *wider))
    weights = f"its weights except {', '.join(new)}, which are random," if new else "its weights"
    return recipe, (
        f"starts from {pretrained.source}: {weights} and its tokenizer, with a new optimizer",
        *pretrained.notes,
    )


def describe_more_steps(recipe: Recipe, step: int, steps: int) -> str:
    """Describe in one line how the schedule changes if a run at `step` takes `steps` steps in total."""
    if steps <= step:
        raise SpecError("steps", f"the run has taken {step} steps already", "use a larger number of steps")
    peak, learning_rate = recipe.optimizer.learning_rate, recipe.schedule.learning_rate
    before, after = learning_rate(peak, max(0, step - 1), recipe.steps), learning_rate(peak, step, steps)
    return f"the schedule now spans {steps} steps: the learning rate continues at {after:.2g} instead of {before:.2g}"


def _trainable_model(
    weights: Path, spec: ModelSpec, adapter: Adapter | None, objective: Objective, device: torch.device
) -> Model:
    # cloned, because training must not write into the mapped file; on the meta device, shards are read later
    model = build_on_meta(spec)
    if adapter is not None:
        install(model, adapter)
    if objective.teacher is not None:
        objective.teacher.install(model)
    if device.type == "meta":
        return model
    fill_from(model, weights)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone().to(device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.clone().to(device))
    return model
