"""A run's loss curve, in the terminal and as a picture."""

from pathlib import Path
from typing import Any

from archetype.io import atomic

Curve = tuple[list[int], list[float]]


def curves(metrics: list[dict[str, Any]]) -> tuple[Curve, Curve]:
    """Training loss, averaged over neighbouring steps, and held-out loss."""
    steps = [(m["step"], m["loss"]) for m in metrics if "loss" in m and not m.get("skipped")]
    width = max(1, len(steps) // 100)
    groups = [steps[i : i + width] for i in range(0, len(steps), width)]
    training = [group[-1][0] for group in groups], [sum(loss for _, loss in group) / len(group) for group in groups]
    held_out = [m for m in metrics if "validation_loss" in m]
    return training, ([m["step"] for m in held_out], [m["validation_loss"] for m in held_out])


def draw_in_terminal(metrics: list[dict[str, Any]], width: int, height: int = 12) -> str:
    """The loss curve in characters."""
    from uniplot import plot_to_string

    shown = [curve for curve in curves(metrics) if curve[0]]
    lines: list[str] | str = plot_to_string(
        xs=[steps for steps, _ in shown], ys=[losses for _, losses in shown],
        lines=[True, False][: len(shown)], legend_labels=["training", "held out"][: len(shown)],
        title="loss (nats) by step", width=min(width, 90) - 12, height=height, color=False,
    )  # fmt: skip
    return lines if isinstance(lines, str) else "\n".join(lines)


def draw_picture(metrics: list[dict[str, Any]], file: Path, title: str) -> None:
    """The loss curve as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training, held_out = curves(metrics)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*training, label="training", linewidth=1.2)
    if held_out[0]:
        axes.plot(*held_out, label="held out", marker="o", markersize=4, linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss (nats)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    atomic.write_with(file, lambda temporary: FigureCanvasAgg(figure).print_png(str(temporary)))
