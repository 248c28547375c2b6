"""GET /api/runs: training runs of a folder and their curves, including runs still in training.

torch is imported only to compute the FLOPs of runs with frozen weights.
"""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.exchange import Exchange
from archetype.errors import ArchetypeError, one_line
from archetype.estimate.report import cost_report, total_parameters
from archetype.io.files import MAX_CONFIG_BYTES, read_bytes, read_json
from archetype.io.yaml import read_mapping
from archetype.models.file import read
from archetype.runs.extensions import check_extensions
from archetype.runs.listing import AXES, MetricsFile, differences_of_runs, downsampled, is_training, run_folders

MAX_POINTS = 10_000  # of a curve
MAX_SAMPLES = 200  # of an answer


Numbers = list[float | int | None]


class RunList(TypedDict):
    folder: str
    runs: list[dict[str, Any]]


class RunDetails(TypedDict):
    name: str
    environment: Any
    recipe: str
    spec: str


class Curves(TypedDict):
    name: str
    version: int
    next: int
    training: bool
    x: str
    names: list[str]
    series: dict[str, dict[str, Numbers]]
    samples: list[dict[str, Any]]
    peak_flops: float | None


async def list_runs(exchange: Exchange) -> RunList:
    """Respond with a summary of every run."""
    runs = exchange.app.runs
    async with runs.turn:
        return {"folder": str(runs.folder), "runs": await asyncio.to_thread(runs.summaries)}


async def run(exchange: Exchange) -> RunDetails:
    """Respond with recipe, architecture and environment of one run."""
    runs, name = exchange.app.runs, exchange.parameters["name"]
    folder = runs.find(name)
    async with runs.turn:
        return await asyncio.to_thread(_details, name, folder)


async def metrics(exchange: Exchange) -> Curves:
    """Respond with the curves of one run, or with their points after a step."""
    query, name, runs = exchange.query, exchange.parameters["name"], exchange.app.runs
    folder = runs.find(name)
    points = exchange.number("points", 2000, 1, MAX_POINTS)
    after, smoothing = exchange.number("after", -1, -1, 2**53), exchange.number("smoothing", 0.9, 0.0, 0.9999)
    axis = query.get("x", "step")
    if axis not in (*AXES, "flops"):
        raise invalid_value("x", f"{axis!r:.40} is not an axis; use one of {', '.join((*AXES, 'flops'))}")
    only = query["series"].split(",") if query.get("series") else None
    async with runs.turn:
        try:
            return await asyncio.to_thread(runs.curves, name, folder, points, after, smoothing, axis, only)
        except ArchetypeError as error:
            raise ApiError("invalid_value", one_line(str(error)), "name") from None


class Runs:
    """Training runs of a folder, which may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics: dict[Path, MetricsFile] = {}
        self.turn = asyncio.Lock()  # requests read files one after the other

    def curves(
        self, name: str, folder: Path, points: int, after: int, smoothing: float, axis: str, only: list[str] | None
    ) -> Curves:
        """Return the curves of a run.

        Args:
            points: largest number of points per curve.
            after: only points after this step are returned.
            smoothing: decay of the moving average.
            axis: one of `AXES`, or "flops".
            only: names of the curves to return; None for all.
        """
        training = is_training(folder)  # before reading: a run that has ended has written all metrics
        metrics = self._read(folder)
        last = metrics.step - 1 if training else metrics.step  # the newest step may get more measurements
        factor = _flops_per_target(folder, _written(folder)) if axis == "flops" else 1.0
        column = AXES[AXES.index("tokens" if axis == "flops" else axis)]
        series = {}
        for key, values in metrics.series.items():
            if only is None or key in only:
                buckets = downsampled(values, column, after, last, points, smoothing)
                series[key] = buckets._replace(x=[x * factor for x in buckets.x])._asdict()
        samples = [{"step": step, "text": text} for step, text in metrics.samples if after < step <= last]
        return {
            "name": name,
            "version": metrics.version,
            "next": last,
            "training": training,
            "x": axis,
            "names": list(metrics.series),
            "series": series,
            "samples": samples[-MAX_SAMPLES:],
            "peak_flops": metrics.peak_flops,
        }

    def summaries(self) -> list[dict[str, Any]]:
        """Return a summary of every run, newest first. A run that cannot be read has an error instead."""
        summaries = [self._summary(name, folder) for name, folder in run_folders(self.folder).items()]
        readable = [summary for summary in summaries if "problem" not in summary]
        recipes = [summary.pop("values") for summary in readable]
        for summary, changes in zip(readable, differences_of_runs(recipes), strict=True):
            summary["changes"] = changes
        return sorted(summaries, key=lambda summary: -summary["updated"])

    def _summary(self, name: str, folder: Path) -> dict[str, Any]:
        summary: dict[str, Any] = {"name": name, "updated": _changed(folder), "training": is_training(folder)}
        try:
            metrics, recipe = self._read(folder), read_mapping(folder / "recipe.yaml")
            known = _architecture(folder, _written(folder))
        except (ArchetypeError, OSError) as error:
            return summary | {"problem": one_line(str(error))}
        return summary | {
            "spec": known["name"],
            "kind": known["kind"],
            "parameters": known["parameters"],
            "step": metrics.step,
            "steps": recipe.get("steps"),
            "loss": metrics.last("loss"),
            "best_validation_loss": metrics.best("validation_loss"),
            "per_second": metrics.last("per_second"),
            "values": recipe | {"spec": known["values"]},
        }

    def _read(self, folder: Path) -> MetricsFile:
        metrics = self._metrics.setdefault(folder, MetricsFile(folder / "metrics.jsonl"))
        metrics.refresh()
        return metrics

    def find(self, name: str) -> Path:
        """Return the folder of a listed run. Refuse any other name.

        Raises:
            ApiError: no listed run has this name.
        """
        if (folder := run_folders(self.folder).get(name)) is None:
            message = f"no run in {self.folder} is named {name!r:.80}; GET /api/runs lists them"
            raise ApiError("run_not_found", message, "name")
        return folder


def _details(name: str, folder: Path) -> RunDetails:
    file = folder / "provenance.json"
    environment = read_json(file).get("environment") if file.is_file() else {}
    return {
        "name": name,
        "environment": environment if isinstance(environment, dict) else {},
        "recipe": read_bytes(folder / "recipe.yaml", MAX_CONFIG_BYTES).decode("utf-8", "replace"),
        "spec": read_bytes(folder / "spec.yaml", MAX_CONFIG_BYTES).decode("utf-8", "replace"),
    }


@lru_cache(maxsize=256)
def _architecture(folder: Path, changed: float) -> dict[str, Any]:
    # cached by the time of change, so that a changed file is read again
    check_extensions(folder)
    spec = read(folder / "spec.yaml")
    return {
        "name": spec.name,
        "kind": spec.kind,
        "parameters": total_parameters(spec),
        "values": spec.dump(full=True, each_layer=True),
    }


@lru_cache(maxsize=256)
def _flops_per_target(folder: Path, changed: float) -> float:
    # training FLOPs per token or image
    spec, values = read(folder / "spec.yaml"), read_mapping(folder / "recipe.yaml")
    length = None if spec.reads_images else values.get("sequence_length")  # an image is one target
    if values.get("trainable") is None and values.get("adapter") is None:
        return cost_report(spec, 1, length).flops["train"] / (length or 1)
    from archetype.training.recipe import Recipe
    from archetype.training.step_flops import step_flops

    return step_flops(Recipe.parse(values), spec, 1, length) / (length or 1)


def _written(folder: Path) -> float:
    # Unix time
    files = (folder / "spec.yaml", folder / "recipe.yaml")
    return max(file.stat().st_mtime for file in files if file.is_file())


def _changed(folder: Path) -> float:
    # when the run last wrote metrics, in Unix time
    return max(
        (file.stat().st_mtime for name in ("recipe.yaml", "metrics.jsonl") if (file := folder / name).is_file()),
        default=0.0,
    )
