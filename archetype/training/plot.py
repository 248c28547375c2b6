"""Loss curves of runs, in the terminal and as image files."""

import math
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

from archetype.errors import one_line
from archetype.io import atomic
from archetype.io.figure_file import check_ending, figure_bytes
from archetype.runs.directory import Run
from archetype.training import metrics

ORDINATE = "loss (nats per token)"
Axis = Literal["steps", "tokens", "flops", "seconds"]
Curve = tuple[list[float], list[float]]


class Curves(NamedTuple):
    """Loss curves of a run.

    Attributes:
        training: training loss, averaged over neighbouring steps.
        held_out: validation loss on the same examples at each evaluation.
        final: validation loss on all examples at the end; empty if `held_out` uses all examples.
    """

    training: Curve
    held_out: Curve
    final: Curve


def curves(lines: list[dict[str, Any]], axis: Axis = "steps", flops_per_target: float = 0.0) -> Curves:
    """Compute the loss curves of a run.

    Args:
        lines: lines of the run's metrics file.
        axis: quantity on the horizontal axis, summed over the steps.
        flops_per_target: training FLOPs per token or image.
    """
    position, positions, steps = 0.0, {0: 0.0}, []
    for line in lines:
        if "loss" in line:
            num_targets = line.get("num_targets", 0)
            position += {
                "steps": line["step"] - position,
                "tokens": num_targets,
                "flops": num_targets * flops_per_target,
                "seconds": num_targets / (line.get("per_second") or math.inf),
            }[axis]
            positions[line["step"]] = position
            if not line.get("skipped"):
                steps.append((position, line["loss"]))
    # about 100 points
    width = max(1, len(steps) // 100)
    groups = [steps[i : i + width] for i in range(0, len(steps), width)]
    training = [group[-1][0] for group in groups], [sum(loss for _, loss in group) / len(group) for group in groups]
    evaluated = [line for line in lines if "validation_loss" in line]
    # the final evaluation differs from the others in its number of predictions
    some = [line for line in evaluated if line.get("validation_count") == evaluated[0].get("validation_count")]
    held_out, final = (
        ([positions.get(line["step"], position) for line in part], [line["validation_loss"] for line in part])
        for part in (some, [line for line in evaluated if line not in some])
    )
    return Curves(training, held_out, final)


def draw_in_terminal(curves: dict[str, Curve], title: str, width: int, height: int = 12) -> str:
    """Plot labelled curves as text."""
    from uniplot import plot_to_string

    shown = {}
    for label, curve in curves.items():
        if points := [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(y)]:  # uniplot fails on only NaN
            shown[label] = tuple(zip(*points, strict=True))
    if not shown:
        return f"{title}: no loss is finite"
    lines: list[str] | str = plot_to_string(
        xs=[xs for xs, _ in shown.values()],
        ys=[ys for _, ys in shown.values()],
        lines=[len(xs) > 1 for xs, _ in shown.values()],
        legend_labels=list(shown),
        title=title,
        width=min(width, 90) - 12,
        height=height,
        color=False,
    )
    return lines if isinstance(lines, str) else "\n".join(lines)


def draw_picture(run: Run, ordinate: str = ORDINATE) -> None:
    """Plot the loss curves of a run to loss.png, with the run's name and final losses."""
    training, held_out, final = curves(metrics.read(run.metrics_file))
    labelled = {
        f"training{_final(training)}": training,
        f"validation{_final(held_out)}": held_out,
        f"whole validation set{_final(final)}": final,
    }
    if training[0] or held_out[0]:
        draw_curves(labelled, run.loss_picture, run.folder.resolve().name, "step", ordinate)


def draw_curves(curves: dict[str, Curve], file: Path, title: str, abscissa: str, ordinate: str = ORDINATE) -> None:
    """Plot labelled curves to a PNG, PDF or SVG file, depending on the file extension."""
    from matplotlib.figure import Figure

    check_ending(file)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for label, (xs, ys) in curves.items():
        if xs:
            mark = "o" if len(xs) <= 50 else None
            # the space: matplotlib leaves labels that begin with an underscore out of the legend
            axes.plot(xs, ys, label=" " + one_line(label), linewidth=1.2, marker=mark, markersize=4)
    axes.set(xlabel=abscissa, ylabel=ordinate)
    # a name may contain dollar signs, which are math markup
    axes.set_title(one_line(title), parse_math=False)
    axes.grid(alpha=0.3)
    for text in axes.legend().get_texts():
        text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters that the font lacks
        atomic.write_bytes(file, figure_bytes(figure, file.suffix))


def _final(curve: Curve) -> str:
    return f": {curve[1][-1]:.4f}" if curve[1] else ""
