"""A training run as a person watches it."""

from typing import TYPE_CHECKING

import typer

from archetype.cli.output import console

if TYPE_CHECKING:
    from archetype.train.metrics import Interrupted
    from archetype.train.state import TrainState


def run_with_progress(state: "TrainState") -> "Interrupted | None":
    """Train to the end with a live line, then show the loss curve."""
    from archetype.cli.progress_line import ProgressLine
    from archetype.cost import total_parameters
    from archetype.train.allocation import keep_freed_memory
    from archetype.train.loop import run
    from archetype.train.metrics import read
    from archetype.train.plot import draw_in_terminal

    keep_freed_memory()
    err = console(stderr=True)
    recipe, spec = state.recipe, state.model.spec
    err.print(
        f"{spec.name or spec.kind}: {total_parameters(spec):,} parameters; {state.objective.description}; "
        f"{recipe.steps} steps of {recipe.batch_size} rows, in {recipe.dtype}, from step {state.step}"
    )
    with ProgressLine(err, state.step, state.recipe.steps, state.objective.unit) as progress:
        interrupted = run(state, progress.show)
    if measured := read(state.run.metrics_file):
        err.print(draw_in_terminal(measured, err.width), markup=False)
    err.print(f"run directory: {state.run.folder}")
    return interrupted


def raise_if_interrupted(state: "TrainState", interrupted: "Interrupted | None") -> None:
    """End with the signal's status, and say how to go on."""
    if interrupted is not None:
        message = f"stopped after step {interrupted.step}; go on with: archetype train --resume {state.run.folder}"
        console(stderr=True).print(message, soft_wrap=True)
        raise typer.Exit(128 + interrupted.signal)
