"""`archetype compare`: experiments with arms, seeds and verdicts, folders of claims, and architecture search."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from archetype.apps.cli.fields import with_groups
from archetype.apps.cli.options import MINUTES, SPEC_HELP, Json, OptionalOutput
from archetype.apps.cli.output import print_json
from archetype.apps.cli.sweep_progress import SweepProgress
from archetype.apps.cli.verb import WRITTEN, Verb

if TYPE_CHECKING:
    from archetype.studies.extend import ReportExtension
    from archetype.studies.search import Search
    from archetype.studies.store import Store
    from archetype.studies.study import Study

MODES = ("quick", "full", "extended", "gpu")
# each mode excludes the earlier ones, so each pair of modes is refused once; nothing trains under --exact
EXCLUDES = {mode: MODES[:number] for number, mode in enumerate(MODES)} | {"exact": ("workers", "engine")}
# the runs of a cluster go on without this process
EXCLUDES["within"] = ("engine",)


class Comparisons(TyperGroup):
    """Subcommands of `compare`. `compare A B` is short for `compare models A B`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `models` if the first argument is a model or an option of `models`."""
        # `compare --minutes 5 A B` is `models` as well, but not `compare -h`, or an option before a subcommand
        is_option = args[:1] and args[0].startswith("-") and not set(args) & {*self.commands, "-h", "--help"}
        if args and args[0] not in self.commands and (is_option or _is_model(args[0])):
            args = ["models", *args]
        return super().parse_args(ctx, args)


def _is_model(word: str) -> bool:
    # the slash is for owner/name on huggingface.co; any other word is left to typer, which suggests a subcommand
    from archetype.families.index import preset_facts

    return Path(word).exists() or "/" in word or word in preset_facts()


app = typer.Typer(
    cls=Comparisons,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Compare architectures in controlled experiments, with seeds, confidence intervals and verdicts.",
    epilog="`archetype compare A B --data FILE` is short for `archetype compare models`.",
)
File = Annotated[str, typer.Argument(metavar="FILE", help="Experiment file, or the number of a claim.")]
ClaimsFolder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="Folder of claims.  [default: claims, here or in the checkout]"),
]
Workers = Annotated[int, typer.Option(min=1, help="Number of parallel processes, with one thread each.")]
EngineName = Annotated[str, typer.Option("--engine", help="Where to run: here, ray or slurm.")]


class Mode(NamedTuple):
    """Options for the extent of an experiment."""

    quick: Annotated[bool, typer.Option("--quick", help="Run for up to a minute; trained parts get no verdict.")] = (
        False
    )
    full: Annotated[bool, typer.Option("--full", help="Run everything that a verdict needs (default).")] = False
    extended: Annotated[bool, typer.Option("--extended", help="Like --full, with further corpora and sizes.")] = False
    gpu: Annotated[bool, typer.Option("--gpu", help="Run larger experiments that need a GPU.")] = False

    @property
    def name(self) -> str:
        return next((mode for mode, is_on in zip(MODES, self, strict=True) if is_on), "full")


class Folders(NamedTuple):
    """Folders that an experiment reads and writes."""

    store: Annotated[
        Path | None, typer.Option("--store", help="Folder of all runs.  [default: $ARCHETYPE_STUDIES, or the cache]")
    ] = None
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of corpora.  [default: $ARCHETYPE_DATA, or here]")
    ] = None

    def open_store(self) -> "Store":
        from archetype.studies.store import Store

        return Store(self.store)

    @property
    def data(self) -> Path:
        import os

        from archetype.studies.corpora import SETTING

        return (self.data_dir or Path(os.environ.get(SETTING) or ".")).expanduser().absolute()


class Sweep(NamedTuple):
    """Options for distributing runs, and their time limit."""

    workers: Workers = 1
    engine: EngineName = "here"
    within: Annotated[
        float | None,
        typer.Option("--minutes", **MINUTES, help="Stop after these minutes; the same command continues."),
    ] = None


class Reports(NamedTuple):
    """Options for showing outcomes."""

    to: Annotated[Path | None, typer.Option("--to", "-o", "--output", help="Folder for the reports.")] = None
    as_json: Json = False


@app.command(cls=Verb)
@with_groups
def models(
    sources: Annotated[list[str], typer.Argument(metavar="MODEL...", help=f"Two or more models. {SPEC_HELP}")],
    data: Annotated[
        str, typer.Option(help="Text file, folder or corpus name; pystdlib is Python's own documentation.")
    ] = "pystdlib",
    minutes: Annotated[float, typer.Option(min=0.01, help="Total time of all runs, in minutes.")] = 10,
    from_weights: Annotated[
        bool,
        typer.Option("--from-weights", help="Start from the models' weights; the first, a donor, is not trained."),
    ] = False,
    *,
    folders: Folders,
    workers: Workers = 1,
    engine: EngineName = "here",
    reports: Reports,
) -> None:
    """Compare models with the first; tokens, learning rates, seeds and margin are chosen and printed with reasons."""
    from archetype.studies.chosen import choose_experiment
    from archetype.studies.sweep import engine as open_engine

    open_engine(engine, workers)
    store = folders.open_store()
    chosen = choose_experiment(sources, data, minutes, workers, folders.data, store, from_weights)
    _say(str(chosen))
    study = _study(str(chosen.file), "full", folders)
    _run(study, Sweep(workers, engine), reports.as_json)
    _report(study, reports)


@app.command(cls=Verb)
@with_groups
def plan(file: File, mode: Mode, folders: Folders, workers: Workers = 1, as_json: Json = False) -> None:
    """Print runs, tokens, minutes and matched quantities; trains only 20 steps of each arm."""
    from archetype.studies.report import plan_text

    # no engine: the 20 steps of each arm, which give its speed, run in this process
    planned = _study(file, mode.name, folders).plan(workers)
    print_json(planned) if as_json else print(plan_text(planned))


@app.command(cls=Verb)
@with_groups
def run(file: File, mode: Mode, folders: Folders, sweep: Sweep, reports: Reports) -> None:
    """Train all missing runs of an experiment, and print its verdicts."""
    _run_file(file, mode, folders, sweep, reports)


def _run_file(file: str, mode: Mode, folders: Folders, sweep: Sweep, reports: Reports) -> None:
    study = _study(file, mode.name, folders)
    if study.without_verdict:
        _say(study.without_verdict)
    _run(study, sweep, reports.as_json)
    _report(study, reports)


@app.command(cls=Verb)
@with_groups
def status(file: File, mode: Mode, folders: Folders, as_json: Json = False) -> None:
    """Print how many runs of an experiment are done, and which are running."""
    about = _study(file, mode.name, folders).status()
    if as_json:
        print_json(about)
        return
    states = ", ".join(f"{count} {state}" for state, count in about["states"].items())
    for part, stages in about["stages"].items():
        print(f"{part}: {', '.join(f'{done} of {total} runs of {stage}' for stage, (done, total) in stages.items())}")
    print(f"{about['left']} runs left in this stage{f': {states}' if states else ''}")
    for key, line in about["running"].items():
        where = f"step {line.get('step', 0):,} of {line.get('steps', 0):,} on {line.get('host', '?')}"
        print(f"  {key}  {where}, {line['seconds_ago']} s ago")


@app.command(cls=Verb)
@with_groups
def report(ctx: typer.Context, file: File, mode: Mode, folders: Folders, reports: Reports) -> None:
    """Print the outcome of a completed experiment; --to writes Markdown, JSON and plots."""
    from archetype.errors import DataError

    study = _study(file, mode.name, folders)
    if left := study.status()["left"]:
        raise DataError(file, f"{left} runs are missing", f"run `archetype compare run {ctx.meta[WRITTEN]}`")
    _report(study, reports)


@app.command(cls=Verb)
@with_groups
def extend(
    report_file: Annotated[Path, typer.Argument(metavar="REPORT.json", help="Report of a full run.")],
    corpus: Annotated[list[str] | None, typer.Option(help="Additional corpus; may be repeated.")] = None,
    *,
    folders: Folders,
    sweep: Sweep,
    reports: Reports,
) -> None:
    """Run the other corpora and sizes of a report's experiment with its tuned arms, and print the new verdicts."""
    from archetype.studies.extend import ReportExtension

    study = ReportExtension(report_file, corpus or (), folders.data, folders.open_store())
    _run(study, sweep, reports.as_json)
    _report(study, reports)


@app.command(cls=Verb)
@with_groups
def calibrate(
    file: Annotated[Path | None, typer.Option(help="Calibration file instead of the packaged one.")] = None,
    *,
    folders: Folders,
    sweep: Sweep,
    reports: Reports,
) -> None:
    """Verify that equal models tie on this machine and wider ones win; required once before trained verdicts."""
    from archetype.errors import DataError
    from archetype.studies.calibration import MUST_GIVE, calibration_file, read_calibration

    study = _study(str(file or calibration_file()), "full", folders)
    _run(study, sweep, reports.as_json)
    _report(study, reports)
    calibration = read_calibration(study.store)
    if calibration is None or not calibration["passed"]:
        wrong = next(
            (
                name
                for name, verdict in MUST_GIVE.items()
                if calibration and calibration["verdicts"].get(name) != verdict
            ),
            "",
        )
        cause = f"{wrong} came out as {calibration['verdicts'].get(wrong)!r}" if calibration else "has no outcome"
        raise DataError("calibration", cause, "trained verdicts are not printed; use more seeds or longer runs")


@app.command(cls=Verb)
@with_groups
def claim(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the claim.")],
    folder: ClaimsFolder = None,
    *,
    mode: Mode,
    folders: Folders,
    sweep: Sweep,
    reports: Reports,
) -> None:
    """Evaluate one claim, part by part."""
    from archetype.studies.claims import claim_file

    _run_file(str(claim_file(number, folder)), mode, folders, sweep, reports)


@app.command("all", cls=Verb)
@with_groups
def all_(
    folder: ClaimsFolder = None,
    *,
    mode: Mode,
    folders: Folders,
    sweep: Sweep,
    exact: Annotated[bool, typer.Option("--exact", help="Train nothing; report which parts have no runs.")] = False,
    reports: Reports,
) -> None:
    """Evaluate all claims of a folder."""
    from archetype.studies.claims import find_claims
    from archetype.studies.overview import overview_text

    outcomes, files = [], [*find_claims(folder).values()]
    _check_mode(files, mode.name)  # one claim with the mode is enough, so `_study` does not check each
    for file in files:
        study = _study(str(file), mode.name, folders, exact, False)
        _run(study, sweep, reports.as_json)
        outcomes.append(_outcome(study, reports.to))
    print_json({"claims": outcomes}) if reports.as_json else print(overview_text(outcomes))


@app.command(cls=Verb)
@with_groups
def search(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Search file.")],
    folders: Folders,
    sweep: Sweep,
    reports: Reports,
) -> None:
    """Search a space of changes by successive halving within cost limits, and plot the Pareto front."""
    from archetype.studies.search import Search, read_search

    study = Search(read_search(file), folders.data, folders.open_store())
    _run(study, sweep, reports.as_json)
    result = study.outcome()
    if reports.to is not None:
        from archetype.studies.search_report import write_search

        write_search(result, reports.to)
    if reports.as_json:
        print_json(result)
    else:
        from archetype.studies.search_report import search_text

        print(search_text(result))


@app.command(cls=Verb)
def schema(to: OptionalOutput = None) -> None:
    """Print the JSON Schema of experiment files, for editors, or write it to a file."""
    from archetype.studies.experiment import json_schema

    print_json(json_schema(), to)


def _check_mode(files: Sequence[Path], mode: str) -> None:
    # a mode that no experiment defines would equal --full, which is not what the user asked for
    from archetype.errors import SpecError
    from archetype.studies.experiment import read_experiment

    if not any(read_experiment(file).has(mode) for file in files):
        raise SpecError(f"--{mode}", "no part defines this mode", f"add modes.{mode} to a part, or use --full")


def _study(file: str, mode: str, folders: Folders, exact: bool = False, alone: bool = True) -> "Study":
    from archetype.errors import SpecError, errors_at
    from archetype.studies.claims import claim_file
    from archetype.studies.experiment import read_experiment
    from archetype.studies.parts import CheckPart
    from archetype.studies.registry import load_checks
    from archetype.studies.spent import start_of_process
    from archetype.studies.study import Study

    # a claim is named by its number, an experiment by its file
    path = claim_file(int(file)) if file.isdigit() else Path(file)
    if alone:
        _check_mode([path], mode)
    experiment = read_experiment(path)
    if any(isinstance(part, CheckPart) for part in experiment.parts):
        # before the study resolves the names of its checks; they are Python files next to the claims
        load_checks(path.parent)
    with errors_at(str(path), SpecError):
        return Study(experiment, mode, folders.data, folders.open_store(), exact, start_of_process())


def _run(study: "Study | ReportExtension | Search", sweep: Sweep, as_json: bool) -> None:
    from archetype.machine.allocation import keep_freed_memory
    from archetype.machine.time_budget import time_is_over
    from archetype.studies.execute import Stopped
    from archetype.studies.sweep import engine as open_engine

    keep_freed_memory()  # as `archetype train` does
    try:
        study.run(open_engine(sweep.engine, sweep.workers), _say, SweepProgress())
    except Stopped:
        _say("stopped; run the same command to continue")
        if not time_is_over():
            raise typer.Exit(130) from None  # as a shell reports Ctrl-C
        if as_json:  # without an outcome, which needs all runs
            print_json({"left": len({request.key for request in study.needed()})})
        raise typer.Exit from None


def _say(line: str) -> None:
    # on stderr: standard output has the outcome only, which --json makes one object
    print(line, file=sys.stderr)


def _outcome(study: "Study | ReportExtension", to: Path | None) -> dict[str, Any]:
    from archetype.studies.overview import write_overview
    from archetype.studies.report import keep_outcome, write_reports

    outcome = study.outcome()
    keep_outcome(outcome, study.store)  # where the web UI finds it, without --to as well
    if to is not None:
        write_reports(outcome, to)
        if outcome["claim"] is not None:
            write_overview(to)
    return outcome


def _report(study: "Study | ReportExtension", reports: Reports) -> None:
    from archetype.studies.report import summary_text

    outcome = _outcome(study, reports.to)
    print_json(outcome) if reports.as_json else print(summary_text(outcome))
