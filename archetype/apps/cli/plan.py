"""Output of `train --plan` and `--find-rate`."""

import math
from pathlib import Path

import torch

from archetype.apps.cli.output import print_device, print_json
from archetype.convert.source import open_spec
from archetype.errors import SpecError
from archetype.estimate.parallel import Cluster, Layout, Planner, Step, best_steps, plan_table
from archetype.io.figure_file import check_ending
from archetype.machine.hardware import device
from archetype.models.spec import ModelSpec, leaves_vocabulary_open
from archetype.spec.edit import put
from archetype.training.budget import Budget
from archetype.training.plan import duration, plan
from archetype.training.plot import draw_in_terminal
from archetype.training.rate_finder import find_rate
from archetype.training.recipe import Recipe
from archetype.training.resolve import ResolvedRecipe

MOST = 12  # layouts shown


def print_plan(recipe: Recipe, cluster: str, gpu: str, budget: Budget, as_json: bool) -> None:
    """Print memory, throughput and time of the fastest layouts, and the recipe options of the best one.

    Args:
        recipe: recipe whose model, batch, sequence length and steps are used.
        cluster: machines x devices per machine, such as 16x8.
        gpu: device type.
        budget: tokens or FLOPs that replace the number of steps.

    Raises:
        SpecError: no layout fits, the recipe sets a field that the plan chooses or has no vocabulary size yet, or the
            budget is in minutes or epochs.
    """
    if budget.minutes is not None:
        raise SpecError("--minutes", "is measured on this machine, not on a cluster", "pass --tokens or --flops")
    if budget.epochs is not None:
        raise SpecError("--epochs", "a plan for a cluster reads no data", "pass --tokens or --flops")
    # the plan looks for the best values of these itself
    if recipe.micro_batch_size is not None or recipe.recompute != "none":
        name = "recompute" if recipe.micro_batch_size is None else "micro_batch_size"
        raise SpecError(name, "is chosen by a plan for a cluster", "remove it")
    for name in ("adapter", "trainable", "stages"):
        if getattr(recipe, name):
            raise SpecError(name, "a plan for a cluster needs all parameters trained", "remove it")
    if recipe.teacher is not None:
        raise SpecError("teacher", "a plan for a cluster counts a single model", "remove it")
    source = recipe.spec
    if leaves_vocabulary_open(source):
        raise SpecError("spec.vocab_size", "is missing, and a plan reads no text", "add --set spec.vocab_size=N")
    model = open_spec(source)
    dtype = "float32" if recipe.dtype == "float32" else "bfloat16"
    length = recipe.sequence_length or model.context_length
    planner = Planner(model, Cluster.parse(cluster, device(gpu)), recipe.batch_size, length, dtype)
    # the degrees that the recipe sets stay as they are; the plan chooses the others
    sizes = {
        name: size
        for name in Layout._fields
        if name in recipe.parallel.model_fields_set and (size := getattr(recipe.parallel, name))
    }
    steps, count = best_steps(planner, sizes), budget.steps(recipe, model, length) if budget else recipe.steps
    chosen, why = _choose(steps, recipe, model)
    if as_json:
        layouts = [_data(step) | {"seconds_of_run": count * step.seconds} for step in steps[:MOST]]
        options = {"chosen": chosen and _fields(chosen), "why": why}
        print_json(
            {"cluster": cluster, "device": gpu, "num_steps": count, "steps": layouts, "recipe": recipe.dump()} | options
        )
        return
    print(f"batch of {recipe.batch_size} x {length:,} tokens, in {dtype}, on {cluster} {gpu}")
    print(plan_table(planner, steps[:MOST]))
    if chosen is None:
        print(f"no layout chosen: {why}")
        return
    again = ", with recomputation" if chosen.recomputes else ""
    print(
        f"chosen: {chosen.layout}, micro-batch {chosen.rows}{again}: {why}; "
        f"{count:,} steps take {duration(count * chosen.seconds)}"
    )
    print(f"as options: {' '.join(f'--set {field}' for field in _fields(chosen))}")


def _choose(steps: list[Step], recipe: Recipe, model: ModelSpec) -> tuple[Step | None, str]:
    refused = ""  # why the fastest layout was passed over, if it was
    # from the fastest: the first that `train` supports; the plan also counts others
    for step in steps:
        data = recipe.dump()
        put(data, _fields(step))
        changed = Recipe.parse(data)
        try:
            changed.parallel.check(model, changed)
        except SpecError as error:
            refused = refused or f"{step.layout} is not supported: {error.place}: {error.cause}"
            continue
        return step, f"the fastest of {len(steps)} layouts that fit{refused and f' and are supported ({refused})'}"
    return None, refused


def _fields(step: Step) -> list[str]:
    sizes = [f"parallel.{name}={degree}" for name, degree in step.layout._asdict().items() if degree > 1]
    return [*sizes, f"micro_batch_size={step.rows}", *(["recompute=blocks"] if step.recomputes else [])]


def _data(step: Step) -> dict[str, object]:
    return {**step._asdict(), "layout": step.layout._asdict(), "tokens_per_second": step.tokens_per_second}


def print_plan_here(resolved: ResolvedRecipe, device: torch.device, chosen: str, as_json: bool) -> None:
    """Print the chosen settings, cost, memory and time of a run on this machine, and whether it fits."""
    planned = plan(resolved, device)
    if as_json:
        print_json(planned.to_json() | {"recipe": resolved.recipe.dump()})
        return
    print_device(device)
    if chosen:
        print(f"chosen: {chosen}")
    optimizer = resolved.recipe.optimizer
    print(f"{optimizer.kind} with a learning rate of {optimizer.learning_rate:g}, in {resolved.recipe.dtype}")
    print(planned.table())


def print_rates(resolved: ResolvedRecipe, device: torch.device, file: Path | None, as_json: bool) -> None:
    """Run a learning-rate range test, and print its curve and the suggested learning rate.

    Args:
        file: image file for the curve.
    """
    if file is not None:
        # before the range test, which takes minutes
        check_ending(file)
    sweep, label = find_rate(resolved, device), resolved.objective.loss_label
    if file is not None:
        sweep.draw(file, label)
    if as_json:
        print_json(sweep.to_json())
        return
    print_device(device)
    title = f"{label} by log10 of the learning rate"
    logarithms = [math.log10(rate) for rate in sweep.rates]
    print(draw_in_terminal({"mean": (logarithms, sweep.means)}, title, 90))
    if sweep.suggested is None:
        print(f"no learning rate lowers the loss in {len(sweep.rates)} steps, so there is no suggestion")
    else:
        print(f"suggested: --learning-rate {sweep.suggested:.1e}")
