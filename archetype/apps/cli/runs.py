"""The commands `runs`, `plot` and `report`."""

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from archetype.apps.cli.options import Json, OptionalOutput
from archetype.apps.cli.output import console, print_json
from archetype.errors import one_line

if TYPE_CHECKING:
    from archetype.runs.directory import Run
    from archetype.table import Table
    from archetype.training.plot import Axis, Curves

EXCLUDES = {"as_json": ("to",)}
MAX_CELL = 40  # characters of a value; some, such as a list of layers, are long
UNITS = {"steps": "step", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs with their size and best validation loss, and a column for each setting that differs."""
    from archetype.errors import ArchetypeError, DataError, Notice
    from archetype.runs.directory import Run
    from archetype.runs.listing import differences_of_runs

    # FOLDER may be a run itself, or have runs up to two levels below
    folders = sorted({file.parent for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}recipe.yaml")})
    rows, problems = [], list[str]()
    # `best` is a folder of a run's own, with a copy of its recipe
    for run in (Run(path) for path in folders if path.name != "best" and Run(path).exists):
        try:
            rows.append(_row(run))
        except (ArchetypeError, OSError) as error:
            problems.append(one_line(str(error)))
    others = f", and {len(problems) - 1} others" if len(problems) > 1 else ""
    if not rows and problems:
        raise DataError(str(folder), f"contains no readable run: {problems[0]}{others}", "")
    if not rows:
        raise DataError(str(folder), "contains no run directories", "name the folder that contains the runs")
    if problems:
        warnings.warn(f"skipped unreadable runs: {problems[0]}{others}", Notice, stacklevel=1)
    _warn_of_texts([row.pop("texts") for row in rows])
    recipes = [row.pop("recipe") for row in rows]
    for row, changes in zip(rows, differences_of_runs(recipes), strict=True):
        row["changes"] = changes
    print_json({"runs": rows}) if as_json else print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> "Table":
    from archetype.table import Table

    paths = [*dict.fromkeys(path for row in rows for path in row["changes"])]
    have_skipped = any(row["num_skipped"] for row in rows)
    cells = [
        [
            row["run"],
            f"{row['parameters']:,}",
            f"{row['step']:,}/{row['steps']:,}",
            "" if row["best_validation_loss"] is None else f"{row['best_validation_loss']:.4f}",
            *([f"{row['num_skipped']:,}"] if have_skipped else []),
            *(_cell(row["changes"].get(path)) for path in paths),
        ]
        for row in rows
    ]
    columns = ("skipped records",) if have_skipped else ()
    return Table(("run", "parameters", "steps", "best validation loss", *columns, *shortest_names(paths)), cells)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else one_line(str(value), MAX_CELL)


def shortest_names(paths: list[str]) -> list[str]:
    """Return the shortest unique suffix of each path."""
    # from the last name to the whole path: rate, optimizer.rate
    ends = {path: [path.split(".", count)[-1] for count in range(path.count("."), -1, -1)] for path in paths}
    return [
        next((end for end in ends[path] if not any(end in ends[other] for other in paths if other != path)), path)
        for path in paths
    ]


def _row(run: "Run") -> dict[str, Any]:
    # `texts` and `recipe` are for the comparison of runs; the caller removes them from the row
    from archetype.estimate.report import total_parameters
    from archetype.runs.directory import read_run_spec
    from archetype.training import metrics
    from archetype.training.plot import curves
    from archetype.training.provenance import read_provenance
    from archetype.training.recipe import read_recipe

    recipe, lines = read_recipe(run.recipe_file), metrics.read(run.metrics_file)
    spec = read_run_spec(run)
    _, (_, losses), _ = curves(lines)  # on the same subset of the validation data; the last evaluation uses all of it
    return {
        "run": str(run.folder),
        "parameters": total_parameters(spec),
        "step": lines[-1]["step"] if lines else 0,
        "steps": recipe.steps,
        "best_validation_loss": min(losses, default=None),
        "texts": _texts_of(run),
        "num_skipped": provenance.num_skipped if (provenance := read_provenance(run)) else 0,
        "recipe": recipe.dump(full=True) | {"spec": spec.dump(full=True, each_layer=True)},
    }


def _texts_of(run: "Run") -> tuple[str, str]:
    # losses are comparable only if both hashes are equal; "" if the run did not record its data
    from archetype.training.provenance import read_provenance

    digest = hashlib.sha256()
    for file in sorted(run.tokenizer_folder.glob("*")):
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    began = read_provenance(run)
    return digest.hexdigest(), began.data if began else ""


def _warn_of_texts(hash_pairs: list[tuple[str, str]]) -> None:
    from archetype.errors import Notice

    tokenizers, data = ({*hashes} for hashes in zip(*hash_pairs, strict=True))
    if len(tokenizers) > 1:
        cause = "these runs use different tokenizers, so their losses per token are not comparable"
        warnings.warn(f"{cause}; compare the validation bits per byte in report.html", Notice, stacklevel=2)
    elif len(data - {""}) > 1:
        cause = "these runs use different data or validation data"
        warnings.warn(f"{cause}, so their losses are not comparable", Notice, stacklevel=2)


def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    x: Annotated[
        Literal["steps", "tokens", "flops", "seconds"], typer.Option(help="Quantity on the x axis.")
    ] = "steps",
    loss: Annotated[Literal["validation", "training"], typer.Option(help="Loss to plot.")] = "validation",
    to: OptionalOutput = None,
    as_json: Json = False,
) -> None:
    """Plot the validation or training losses of several runs."""
    from archetype.errors import SpecError
    from archetype.runs.directory import Run
    from archetype.training.plot import draw_curves, draw_in_terminal

    labelled = {}
    for folder in folders:
        curves = _curves(Run(folder), x)
        labelled[str(folder)] = curves.held_out if loss == "validation" else curves.training
    if not any(xs for xs, _ in labelled.values()):
        remedy = "train longer, or plot --loss training" if loss == "validation" else "train longer"
        raise SpecError(", ".join(map(str, folders)), f"no {loss} loss has been recorded yet", remedy)
    _warn_of_texts([_texts_of(Run(folder)) for folder in folders])
    if as_json:
        data = {name: {"x": list(xs), "loss": list(losses)} for name, (xs, losses) in labelled.items()}
        print_json({"x": x, "loss": loss, "runs": data})
        return
    title = f"{loss} loss (nats)"
    if to is not None:
        draw_curves(labelled, to, title, UNITS[x])
        print(to)
        return
    out = console()
    out.print(draw_in_terminal(labelled, f"{title} by {UNITS[x]}", out.width), markup=False)


def _curves(run: "Run", axis: "Axis") -> "Curves":
    from archetype.errors import DataError
    from archetype.runs.directory import read_run_spec
    from archetype.training import metrics
    from archetype.training.plot import curves
    from archetype.training.recipe import read_recipe
    from archetype.training.step_flops import step_flops

    if not run.exists:
        remedy = "pass run directories, as `archetype runs FOLDER` lists them"
        raise DataError(str(run.folder), "is not a run directory", remedy)
    lines, flops = metrics.read(run.metrics_file), 0.0
    if axis == "flops":
        spec, recipe = read_run_spec(run), read_recipe(run.recipe_file)
        length = None if spec.reads_images else recipe.sequence_length  # an image is one target
        # of one sequence, for one of its targets
        flops = step_flops(recipe, spec, 1, length) / (length or 1)
    return curves(lines, axis, flops)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")], as_json: Json = False
) -> None:
    """Write report.html of a run: curves, cost, recipe, samples and environment."""
    from archetype.runs.directory import Run
    from archetype.training.report_page import write_report

    file = write_report(Run(folder))
    if as_json:
        print_json({"report": str(file)})
    else:
        print(file)
