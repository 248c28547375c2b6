"""The output of `train --plan` and `--find-rate`: how a recipe would train here or on a cluster."""

import math
from pathlib import Path

import torch

from archetype.apps.cli.output import print_device, print_json
from archetype.convert.source import open_spec
from archetype.errors import SpecError
from archetype.estimate.parallel import Cluster, Planner, Step, best_steps, plan_table
from archetype.machine.hardware import device
from archetype.models.spec import leaves_vocabulary_open
from archetype.training.budget import Budget
from archetype.training.plan import duration, plan
from archetype.training.plot import draw_in_terminal
from archetype.training.rate_finder import find_rate
from archetype.training.recipe import Recipe
from archetype.training.resolve import ResolvedRecipe


def print_plan(recipe: Recipe, cluster: str, gpu: str, budget: Budget, as_json: bool) -> None:
    """Print memory, throughput and time of the fastest layouts, and what the best of them is in a recipe.

    Args:
        recipe: of which model, batch, length and steps count.
        cluster: machines and devices of each, such as 16x8.
        gpu: name of the devices.
        budget: tokens or FLOPs in place of the steps.
        as_json: print one JSON object.

    Raises:
        SpecError: no layout fits, the recipe leaves the vocabulary to a tokenizer, or the budget is of time or data.
    """
    if budget.minutes is not None:
        raise SpecError("--minutes", "is measured on this machine, not on a cluster", "give --tokens or --flops")
    if budget.epochs is not None:
        raise SpecError("--epochs", "are of data, and a plan for a cluster reads none", "give --tokens or --flops")
    source = recipe.spec
    if leaves_vocabulary_open(source):
        raise SpecError("spec.vocab_size", "is missing, and a plan reads no text", "add --set spec.vocab_size=N")
    model = open_spec(source)
    dtype = "float32" if recipe.dtype == "float32" else "bfloat16"
    length = recipe.sequence_length or model.context_length
    planner = Planner(model, Cluster.parse(cluster, device(gpu)), recipe.batch_size, length, dtype)
    steps, count = best_steps(planner), budget.steps(recipe, model, length) if budget else recipe.steps
    if as_json:
        layouts = [_data(step) | {"seconds_of_run": count * step.seconds} for step in steps]
        print_json({"cluster": cluster, "device": gpu, "num_steps": count, "steps": layouts, "recipe": recipe.dump()})
        return
    print(f"{recipe.batch_size} rows of {length:,} tokens a step, in {dtype}, on {cluster} {gpu}")
    print(plan_table(planner, steps))
    print(f"{count:,} steps take {duration(count * steps[0].seconds)} with the first")
    best = next((step for step in steps if step.layout.pipeline == 1), None)  # what `train` does
    if best is not None:
        print(f"recommended: {' '.join(f'--set {field}' for field in _fields(best))}")


def _fields(step: Step) -> list[str]:
    sizes = [f"parallel.{name}={number}" for name, number in step.layout._asdict().items() if number > 1]
    return [*sizes, f"micro_batch_size={step.rows}"]


def _data(step: Step) -> dict[str, object]:
    return {**step._asdict(), "layout": step.layout._asdict(), "tokens_per_second": step.tokens_per_second}


def print_plan_here(resolved: ResolvedRecipe, device: torch.device, chosen: str, as_json: bool) -> None:
    """Print what was chosen, cost, memory and time of a run on this machine, and whether it fits."""
    planned = plan(resolved, device)
    if as_json:
        print_json(planned.to_json() | {"recipe": resolved.recipe.dump()})
        return
    print_device(device)
    if chosen:
        print(f"chosen: {chosen}")
    optimizer = resolved.recipe.optimizer
    print(f"{optimizer.kind} with a learning rate of {optimizer.learning_rate:g}")
    print(planned.table())


def print_rates(resolved: ResolvedRecipe, device: torch.device, file: Path | None, as_json: bool) -> None:
    """Print the curve of a learning-rate range test and the rate that it suggests.

    Args:
        file: where to draw the curve as a picture (absent: nowhere).
    """
    sweep, unit = find_rate(resolved, device), resolved.objective.unit
    if file is not None:
        sweep.draw(file, unit)
    if as_json:
        print_json(sweep.to_json())
        return
    print_device(device)
    title = f"loss (nats per {unit}) by the logarithm of the learning rate, base 10"
    logarithms = [math.log10(rate) for rate in sweep.rates]
    print(draw_in_terminal({"mean": (logarithms, sweep.means)}, title, 90))
    if sweep.suggested is None:
        print(f"no rate lowers the loss in {len(sweep.rates)} steps, so that none is suggested")
    else:
        print(f"suggested: --learning-rate {sweep.suggested:.1e}")
