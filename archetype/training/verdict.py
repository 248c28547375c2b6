"""Verdict on a finished run: whether it diverged, or is worse than guessing on validation data."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

NUM_STEPS = 20  # last steps, whose mean loss is judged
MARGIN = 1.1  # ratio to the loss of guessing that counts as diverged
RISEN = 1.25  # ratio to the first loss that counts as diverged; batches differ by less


class Verdict(NamedTuple):
    """One-line description of a finished run's fault, and whether the run diverged."""

    text: str
    has_diverged: bool


def has_diverged(loss: float, first: float, guess: float | None) -> bool:
    """Return whether a mean loss is worse than both the first loss and guessing, or far above the first loss."""
    # `not <=`, so that NaN counts as diverged
    return not loss <= RISEN * first or (guess is not None and loss > max(MARGIN * guess, first))


def final_loss(lines: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean training loss of the last 20 steps, or of the second half of a run with fewer than 40 steps."""
    losses = [line["loss"] for line in lines if "loss" in line and not line.get("skipped")]
    return fmean(losses[-min(NUM_STEPS, -(-len(losses) // 2)) :]) if losses else None


def comparable(lines: Sequence[dict[str, Any]], is_taught: bool) -> Sequence[dict[str, Any]]:
    """Return the lines of a run by whose losses it is judged.

    The training loss of a run with a teacher is a distance from the teacher, which may begin with 0 and then rise;
    validation measures the text.
    """
    if not is_taught:
        return lines
    evaluated = [line for line in lines if "validation_loss" in line]
    return [*({"loss": line["validation_loss"]} for line in evaluated), *evaluated]


def verdict(
    lines: Sequence[dict[str, Any]], guess: float | None, peak: float, is_taught: bool = False
) -> Verdict | None:
    """Judge a finished run. Return None if it has no fault.

    Args:
        lines: lines of the run's metrics file.
        guess: validation loss of guessing without reading the inputs, if known.
        peak: peak learning rate.
        is_taught: whether the run has a teacher.
    """
    lines = comparable(lines, is_taught)
    losses, last = [line["loss"] for line in lines if "loss" in line and not line.get("skipped")], final_loss(lines)
    validation = next((line["validation_loss"] for line in reversed(lines) if "validation_loss" in line), None)
    if last is None or validation is None:
        return None
    first = losses[0]
    is_worse = guess is not None and not validation <= guess
    learns = last < first and (guess is None or last < guess)  # whatever the validation loss
    end = validation if is_worse and not validation <= last else min(last, validation)  # validation or last may be NaN
    if not learns and has_diverged(end, first, guess):
        worse = f"worse than guessing ({guess:.2f})" if is_worse else f"and started at {first:.2f}"
        cause = f"ends at a validation loss of {validation:.2f}, {worse}: a learning rate of {peak:.2g} is too high"
        return Verdict(f"{cause}; start again with a lower learning rate, as --find-rate suggests", True)
    if not is_worse:
        return None
    ends = f"ends at a validation loss of {validation:.4g}, worse than guessing ({guess:.4g})"
    if learns:
        cause = f"with a training loss of {last:.4g}, the model has memorized its examples"
        return Verdict(f"{ends}: {cause}; use fewer steps, more examples, or the weights in best", False)
    cause = f"{len(losses)} steps at a learning rate of {peak:.2g} are too few"
    return Verdict(f"{ends}: {cause}; continue with --resume and more --steps, or use a higher rate", False)
