"""A training run as a person watches it."""

from typing import TYPE_CHECKING

import typer

from archetype.cli.output import console

if TYPE_CHECKING:
    from archetype.training.metrics import Event, Interrupted
    from archetype.training.plot import Curve
    from archetype.training.state import TrainState

SAMPLE_TOKENS = 40


def run_with_progress(state: "TrainState", curve_height: int = 12, samples: bool = True) -> "Interrupted | None":
    """Train to the end with a live line, and draw the loss curve.

    Args:
        state: from `start` or `resume`.
        curve_height: lines of the curve; 1 is a line of bars.
        samples: whether to show at each evaluation what the model writes.
    """
    from archetype.cli.progress_line import ProgressLine
    from archetype.cost import total_parameters
    from archetype.training.allocation import keep_freed_memory
    from archetype.training.loop import run
    from archetype.training.metrics import Evaluated, read
    from archetype.training.plot import curves, draw_in_terminal

    keep_freed_memory()
    err = console(stderr=True)
    recipe, spec = state.recipe, state.model.spec
    err.print(
        f"{spec.name or spec.kind}: {total_parameters(spec):,} parameters; {state.objective.description}; "
        f"{recipe.steps} steps of {recipe.batch_size} rows, in {recipe.dtype}, from step {state.step}",
        markup=False,
    )
    with ProgressLine(err, state.step, state.recipe.steps, state.objective.unit) as progress:

        def show(event: "Event") -> None:
            progress.show(event)
            if samples and isinstance(event, Evaluated) and (text := sample(state)):
                err.print(f"step {event.step:>5}  writes: {text}", markup=False, soft_wrap=True)

        interrupted = run(state, show)
    if measured := read(state.run.metrics_file):
        training, held_out, _ = curves(measured)
        title = f"loss (nats per {state.objective.unit}) by step"
        labelled = {"training": training, "held out": held_out}
        drawn = draw_in_terminal(labelled, title, err.width, curve_height) if curve_height > 1 else loss_bars(training)
        err.print(drawn, markup=False)
    err.print(f"run directory: {state.run.folder}", markup=False, soft_wrap=True)
    return interrupted


def sample(state: "TrainState") -> str:
    """How the model goes on with the first words of the held-out text, in one line; empty for other objectives."""
    from archetype.errors import ArchetypeError, one_line
    from archetype.language_model import LanguageModel
    from archetype.training.objectives.next_token import NextTokenObjective

    if state.num_evaluated > 1 or state.tokenizer is None or not isinstance(state.objective, NextTokenObjective):
        return ""
    prompt = state.tokenizer.decode(state.objective.corpus.validation[:8].tolist())
    try:
        lm = LanguageModel(state.model.spec, state.model.eval(), state.tokenizer)
        return one_line(prompt + lm.generate(prompt, max_new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=state.step))
    except ArchetypeError as error:  # a part from outside that cannot generate can still be trained
        return str(error)
    finally:
        state.model.train()


def loss_bars(curve: "Curve", width: int = 60) -> str:
    """The training loss by step as one line of bars."""
    _, losses = curve
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
        console(stderr=True).print(message, soft_wrap=True, markup=False)
        raise typer.Exit(128 + interrupted.signal)
