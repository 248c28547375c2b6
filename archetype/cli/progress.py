"""A training run as a person watches it."""

from typing import TYPE_CHECKING, Any

import typer

from archetype.cli.output import console

if TYPE_CHECKING:
    from archetype.training.metrics import Interrupted
    from archetype.training.state import TrainState


def run_with_progress(state: "TrainState", curve_height: int = 12) -> "Interrupted | None":
    """Train to the end with a live line, then draw the loss curve, `curve_height` lines high; 1 is a line of bars."""
    from archetype.cli.progress_line import ProgressLine
    from archetype.cost import total_parameters
    from archetype.training.allocation import keep_freed_memory
    from archetype.training.loop import run
    from archetype.training.metrics import read
    from archetype.training.plot import draw_in_terminal

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
        curve = loss_bars(measured) if curve_height == 1 else draw_in_terminal(measured, err.width, curve_height)
        err.print(curve, markup=False)
    err.print(f"run directory: {state.run.folder}")
    return interrupted


def loss_bars(metrics: list[dict[str, Any]], width: int = 60) -> str:
    """The training loss by step as one line of bars."""
    from archetype.training.plot import curves

    (_, losses), _ = curves(metrics)
    if not losses:
        return ""
    losses = [losses[index * len(losses) // width] for index in range(width)] if len(losses) > width else losses
    low, high = min(losses), max(losses)
    bars = "".join("▁▂▃▄▅▆▇█"[int(7 * (loss - low) / ((high - low) or 1.0))] for loss in losses)
    return f"loss {losses[0]:.2f} {bars} {losses[-1]:.2f} nats"


def raise_if_interrupted(state: "TrainState", interrupted: "Interrupted | None") -> None:
    """End with the signal's status, and say how to go on."""
    if interrupted is not None:
        message = f"stopped after step {interrupted.step}; go on with: archetype train --resume {state.run.folder}"
        console(stderr=True).print(message, soft_wrap=True)
        raise typer.Exit(128 + interrupted.signal)
