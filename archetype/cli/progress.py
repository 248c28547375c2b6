"""A training run as a person watches it."""

from typing import TYPE_CHECKING

import typer

from archetype.cli.output import console

if TYPE_CHECKING:
    from archetype.train.loop import Interrupted
    from archetype.train.state import Session


def run_with_progress(session: "Session") -> "Interrupted | None":
    """Train to the end with a live line, then show the loss curve."""
    from archetype.cost import total_parameters
    from archetype.train.allocation import keep_freed_memory
    from archetype.train.metrics import read
    from archetype.train.plot import draw_in_terminal
    from archetype.train.progress import ProgressLine
    from archetype.train.run import run

    keep_freed_memory()
    err = console(stderr=True)
    recipe, spec = session.recipe, session.model.spec
    err.print(
        f"{spec.name or spec.kind}: {total_parameters(spec):,} parameters; {session.task.size}; "
        f"{recipe.steps} steps of {recipe.batch_size} rows, in {session.dtype}, from step {session.step}"
    )
    with ProgressLine(err, session.step, session.recipe.steps, session.task.unit) as progress:
        interrupted = run(session, progress.show)
    if measured := read(session.run.metrics_file):
        err.print(draw_in_terminal(measured, err.width), markup=False)
    err.print(f"run directory: {session.run.folder}")
    return interrupted


def raise_if_interrupted(session: "Session", interrupted: "Interrupted | None") -> None:
    """End with the signal's status, and say how to go on."""
    if interrupted is not None:
        message = f"stopped after step {interrupted.step}; go on with: archetype train --resume {session.run.folder}"
        console(stderr=True).print(message, soft_wrap=True)
        raise typer.Exit(128 + interrupted.signal)
