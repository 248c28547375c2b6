"""Charts of a study: training losses, trials, scaling laws and curves of checks."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from archetype.chart import Chart
from archetype.studies.retention import state_text
from archetype.studies.scaling import Law


def pictures_of(part: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts of a part as {name: SVG}; empty if the part was not run."""
    if "comparisons" in part:
        charts = dict((*_losses(part), *_trials(part), *_loss_by_state(part)))
    elif "fitted" in part:
        charts = {"law": _law(part)}
    else:
        charts = dict(_check_curves(part))
    return {name: svg for name, chart in charts.items() if (svg := chart.svg())}


def _losses(part: Mapping[str, Any]) -> Iterator[tuple[str, Chart]]:
    for index, comparison in enumerate(part["comparisons"], 1):
        lines = {arm: (curve["step"], curve["mean"]) for arm, curve in comparison["curves"].items()}
        # minimum and maximum over seeds
        bands = {arm: (curve["step"], curve["low"], curve["high"]) for arm, curve in comparison["curves"].items()}
        yield f"loss-{index}", Chart("step", f"held-out loss on {comparison['name']}", lines, bands=bands)


def _loss_by_state(part: Mapping[str, Any]) -> Iterator[tuple[str, Chart]]:
    """Plot the loss of arms that start from weights against their state size.

    A vertical line spans the seeds, and a horizontal one shows the control's loss at every state.
    """
    if part.get("retention"):
        losses = part["comparisons"][0]["losses"]
        tests = {arm: [loss for loss in of["test"] if loss is not None] for arm, of in losses.items()}
        state = {arm: values["state_bytes"] for arm, values in part["arms"].items()}
        drawn = {arm: test for arm, test in tests.items() if test}
        points = {arm: ([state[arm]], [mean(test)]) for arm, test in drawn.items()}
        lines = {arm: ([state[arm]] * 2, [min(test), max(test)]) for arm, test in drawn.items()}
        if (control := part["control"]) in drawn:
            sizes = [state[arm] for arm in drawn]
            lines[control] = [min(sizes), max(sizes)], [mean(drawn[control])] * 2
        yield "loss-by-state", Chart(f"bytes of {state_text(part)}", "test loss", lines, points)


def _trials(part: Mapping[str, Any]) -> Iterator[tuple[str, Chart]]:
    paths, arms = part["tuning"]["paths"], part["tuning"]["arms"]
    trials = {arm: [(*trial["values"], trial["loss"]) for trial in about["trials"]] for arm, about in arms.items()}
    # only one numeric hyperparameter can be an axis
    if len(paths) == 1 and all(isinstance(trial[0], int | float) for many in trials.values() for trial in many):
        pairs = {arm: sorted(pair for pair in many if pair[1] is not None) for arm, many in trials.items()}
        curves = {arm: ([x for x, _ in many], [y for _, y in many]) for arm, many in pairs.items()}
        yield "trials", Chart(paths[0], "validation loss", curves, curves, log_x=True)


def _law(part: Mapping[str, Any]) -> Chart:
    """Plot the runs as points, the law as lines, and the prediction for the held-out size as a band."""
    law, lines, points = Law(**part["law"]), {}, {}
    # `seen`: runs of the held-out size
    runs = [*part["fitted"], *part["seen"]]
    for parameters in dict.fromkeys(run["parameters"] for run in runs):
        of_size = [run for run in runs if run["parameters"] == parameters]
        tokens = [run["tokens"] for run in of_size]
        points[_size(parameters)] = (tokens, [run["loss"] for run in of_size])
        lines[_size(parameters)] = (tokens, [law.loss(parameters, num_tokens) for num_tokens in tokens])
    band = [[prediction[name] for prediction in part["predicted"]] for name in ("tokens", "low", "high")]
    bands = {_size(part["seen"][0]["parameters"]): (band[0], band[1], band[2])}
    return Chart("tokens", "loss", lines, points, bands, log_x=True, log_y=True)


def _size(parameters: float) -> str:
    return f"{parameters:,.0f} parameters"


def _check_curves(part: Mapping[str, Any]) -> Iterator[tuple[str, Chart]]:
    """Yield the charts of a check. Curves with equal axes share a chart."""
    groups: dict[tuple[Any, ...], dict[str, tuple[Sequence[float], Sequence[float]]]] = {}
    for curve in part.get("curves", ()):
        axes = tuple(curve[name] for name in ("x_name", "y_name", "log_x", "log_y"))
        groups.setdefault(axes, {})[curve["label"]] = (curve["x"], curve["y"])
    for index, ((x_name, y_name, log_x, log_y), lines) in enumerate(groups.items(), 1):
        yield str(index), Chart(x_name, y_name, lines, log_x=log_x, log_y=log_y)
