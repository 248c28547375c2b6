"""The command `train`, which trains from a recipe or from options and writes a run directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from archetype.apps.cli import train_options as opts
from archetype.apps.cli.fields import takes, values_of
from archetype.apps.cli.options import Device, Json, OptionalOutput
from archetype.apps.cli.output import print_json

if TYPE_CHECKING:
    from archetype.training.pretrained import Pretrained
    from archetype.training.recipe import Recipe
    from archetype.training.state import TrainState

SECTIONS, OPTIONAL_VALUES, NEEDS, EXCLUDES = opts.SECTIONS, opts.OPTIONAL_VALUES, opts.NEEDS, opts.EXCLUDES


@takes(opts.FIELDS | opts.BUDGET, opts.DEFAULTS)
def train(
    texts: opts.Texts = None,
    recipe: opts.RecipeFile = None,
    to: OptionalOutput = None,
    resume: opts.Resume = None,
    allow_changes: opts.AllowChanges = False,
    assignments: opts.Assignments = None,
    start_from: opts.From = None,
    new_tokens: opts.AddTokens = None,
    device: Device = "auto",
    force: opts.Force = False,
    plan: opts.Plan = None,
    gpu: opts.Gpu = None,
    find_rate: opts.FindRate = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a model on text, text pairs or images and write a run directory."""
    from archetype.errors import SpecError

    if to is None and resume is None and plan is None and not find_rate:
        raise SpecError("--to", "is missing", "name the run directory to create, such as --to runs/first")
    from archetype.api.pretrained import open_pretrained, open_teacher
    from archetype.apps.cli.plan import print_plan, print_plan_here, print_rates
    from archetype.apps.cli.progress import preparation_bar, raise_if_interrupted, run_with_progress, tokenization_bar
    from archetype.machine.device import resolve_device
    from archetype.training import metrics, setup
    from archetype.training.budget import Budget
    from archetype.training.defaults import assemble
    from archetype.training.processes import launched
    from archetype.training.resolve import resolve_recipe

    folder = resume or to or Path("run")  # `run` only names the folder of a plan, which writes nothing
    fields, budget = opts.recipe_fields(options, texts, new_tokens), Budget.parse(values_of(opts.BUDGET, options))

    # reads data and a pretrained model, which may take long, so only in the branches that need it
    def assembled() -> tuple["Pretrained | None", "Recipe", str]:
        pretrained = None if start_from is None else open_pretrained(start_from)
        chosen, reasons = assemble(recipe, fields, assignments or [], budget, pretrained)
        return pretrained and pretrained.for_recipe(chosen), chosen, reasons

    if plan == opts.HERE and gpu is not None:
        raise SpecError("--gpu", "needs the size of a cluster in --plan", "add the size, such as --plan 1x8")
    if plan is not None or find_rate:
        here, (pretrained, chosen, reasons) = resolve_device(device), assembled()
        if plan not in (None, opts.HERE):
            print_plan(chosen, plan, gpu or opts.GPU, budget, as_json)
            return
        resolved = resolve_recipe(
            folder, chosen, here, None, True, budget, pretrained, is_plan=not find_rate, open_teacher=open_teacher
        )
        if find_rate:
            print_rates(resolved, here, to, as_json)
        else:
            print_plan_here(resolved, here, reasons, as_json)
        return
    # under torchrun, each process gets its own device
    with launched(resolve_device(device)) as (processes, own_device):

        def begin() -> "TrainState":
            if resume is not None:
                steps = fields.get("steps")
                sizes = assignments or ()
                return setup.resume(resume, own_device, steps, allow_changes, force, sizes, processes, open_teacher)
            pretrained, chosen, reasons = assembled()
            state = setup.start(folder, chosen, own_device, None, force, budget, pretrained, processes, open_teacher)
            state.notes = (*([f"chosen: {reasons}"] if reasons else []), *state.notes)
            return state

        with tokenization_bar(), preparation_bar():
            # the first process creates the run directory; the others resume it once it exists
            state = processes.begin(begin, lambda: setup.resume(folder, own_device, force=True, processes=processes))
        interrupted = run_with_progress(state)
    if as_json and processes.is_main:
        last = metrics.last(state.run.metrics_file)
        print_json({"run": str(state.run.folder), "step": state.step, "last": last})
    raise_if_interrupted(state, interrupted)  # after the JSON, which an interrupted run prints as well
    if state.verdict is not None and state.verdict.has_diverged:
        raise typer.Exit(1)
