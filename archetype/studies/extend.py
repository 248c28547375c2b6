"""Extend a full-mode report to more corpora and sizes, with the report's tuned arms and a few seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from archetype.errors import DataError
from archetype.io.files import read_json
from archetype.machine.environment import now
from archetype.spec.errors import in_words, path
from archetype.studies.calibration import read_calibration
from archetype.studies.evidence import CONTROL_FAILED, NOT_SHOWN
from archetype.studies.experiment import Experiment
from archetype.studies.parts import TrainedPart
from archetype.studies.settings import is_text
from archetype.studies.store import CODE, RunRequest, Store
from archetype.studies.sweep import Engine, Progress, Say, make_needed
from archetype.studies.trained import Comparison, TrainedStudy, is_near_guess
from archetype.studies.trained_outcome import comparison_data, cost, findings, machines, one_corpus
from archetype.studies.trials import Trials
from archetype.studies.verdicts import confirmed, verdict_of_arms, whole_verdict

WRITE_ANEW = "pass the .json that `archetype compare run --to` wrote"


class AnyPart(BaseModel, extra="allow"):
    """Fields of any part that the overall verdict needs."""

    id: str
    verdict: str
    is_supported: bool


class Report(BaseModel):
    """Fields of a report that an extension needs."""

    mode: Literal["full", "extended"]
    experiment: dict[str, Any]
    hash: str
    parts: list[AnyPart]


class TunedArm(BaseModel):
    """Best hyperparameters of one arm, in the order of the grid's paths."""

    best: tuple[Any, ...]


class Tuning(BaseModel):
    """Paths of the tuning grid, and the best point of each arm; no arms if nothing was tuned."""

    paths: tuple[str, ...]
    is_interior: bool
    arms: dict[str, TunedArm]


class Effect(BaseModel):
    """Mean difference with the ends of its interval."""

    effect: tuple[float, float, float]


class ReportedTest(BaseModel):
    arm: str
    verdict: str
    reason: str
    effect: Effect


class Band(BaseModel):
    """Largest validation loss over seeds at each evaluation."""

    high: list[float] = Field(min_length=1)


class SeedLosses(BaseModel):
    """Final validation loss of each seed; null if not finite."""

    validation: list[float | None]


class ReportedComparison(BaseModel):
    name: str
    curves: dict[str, Band]
    losses: dict[str, SeedLosses] = {}  # pydantic copies it


class Cost(BaseModel):
    """Total cost of a study: number of runs, single-core seconds, and number of predicted tokens."""

    runs: int
    seconds: float
    predictions: int


class ReportedPart(AnyPart):
    """Fields of a trained part that an extension needs."""

    claimed: str
    control: str
    tests: list[ReportedTest] = Field(min_length=1)
    comparisons: list[ReportedComparison] = Field(min_length=1)
    tuning: Tuning
    limits: list[str]
    cost: Cost
    machines: list[str]

    @property
    def others(self) -> set[str]:
        return {comparison.name for comparison in self.comparisons[1:]}

    def trials(self) -> Trials | None:
        best = {name: arm.best for name, arm in self.tuning.arms.items()}
        return Trials(self.tuning.paths, {}, best, self.tuning.is_interior) if best else None


class ReportExtension:
    """Runs of `extended` mode that a report in full mode lacks.

    The report's runs may have been made on another machine.

    Args:
        file: JSON file of the report.
        corpora: corpora to add to those in the experiment.

    Raises:
        ArchetypeError: the file is not a report in full mode, there is nothing to add, a corpus is missing, or this
            machine is not calibrated.
    """

    def __init__(self, file: Path, corpora: Sequence[str], data_folder: Path, store: Store) -> None:
        self.report, self.store, self.corpora = read_json(file), store, tuple(corpora)
        experiment, parts = _trained_parts(file, self.report)
        calibration = read_calibration(store)
        if not (calibration and calibration["passed"]):
            cause = "this machine is not calibrated, so it cannot give verdicts"
            raise DataError(str(file), cause, "run `archetype compare calibrate` first")
        self.studies: dict[str, TrainedStudy] = {}
        self.trials: dict[str, Trials] = {}
        self.reported: dict[str, ReportedPart] = {}
        for part, reported in parts:
            data = part.data + tuple(_another(part.data[0], name) for name in corpora if is_text(part.data[0]))
            study = TrainedStudy(part.replace(data=data), "extended", data_folder, store, experiment.split)
            # parts with a single corpus and size have nothing to add
            if len(study.sources) + len(study.mode.sizes) > 1:
                self.studies[part.id], self.reported[part.id] = study, reported
                self.trials[part.id] = trials = reported.trials() or study.trials()[0]
                are_whole = all(len(point) == len(trials.paths) for point in trials.best.values())
                if trials.best.keys() != study.arms.keys() or not are_whole:
                    cause = f"the trials of {part.id} do not match its arms"
                    raise DataError(str(file), cause, WRITE_ANEW)
        if not self.studies:
            raise DataError(str(file), "the parts name no further corpus or size", "name a corpus with --corpus")

    def needed(self) -> list[RunRequest]:
        return [
            request
            for name, study in self.studies.items()
            for request in study.needed_of_others(self.trials[name], self.reported[name].others)
        ]

    def run(self, engine: Engine, say: Say = lambda line: None, progress: Progress = lambda done, total: None) -> None:
        make_needed(self.needed, self.store, engine, say, progress)

    def outcome(self) -> dict[str, Any]:
        """Return the report with the added comparisons. A part that one of them contradicts becomes "not shown"."""
        parts = [part | self._extended(part) if part["id"] in self.studies else part for part in self.report["parts"]]
        return self.report | {"mode": "extended", "verdict": whole_verdict(parts), "parts": parts}

    def _extended(self, part: Mapping[str, Any]) -> dict[str, Any]:
        name = part["id"]
        study, trials, reported = self.studies[name], self.trials[name], self.reported[name]
        # the first comparison decides
        others, first = study.others(trials, reported.others), reported.comparisons[0].name
        evidence = [(comparison.name, study.evidence(trials, comparison)) for comparison in others]
        has_failed, tests = self._has_learned_nothing(study, reported), []
        for test, before in zip(reported.tests, part["tests"], strict=True):
            verdict, reason = test.verdict, test.reason
            if verdict != NOT_SHOWN and has_failed:  # a rule added after the report was written
                verdict, reason = NOT_SHOWN, f"{CONTROL_FAILED}: {reported.control} learned no more than a guess"
            of_arm = [(other, values[test.arm]) for other, values in evidence]
            verdict, reason = confirmed(study.part, verdict, reason, test.effect.effect[0], first, of_arm)
            is_supported = verdict == reported.claimed
            tests.append(
                {
                    "arm": test.arm,
                    "verdict": verdict,
                    "reason": reason,
                    "is_supported": is_supported,
                    # plain data as reported, since the parsed test has only the fields that are needed here
                    "effect": before["effect"],
                }
            )
        results = [result for comparison in others for result in comparison.all_results()]
        added = cost(results)
        # named in the report, since they were chosen after the verdict
        late = [name for name in self.corpora if name in {comparison.name for comparison in others}]
        limits = [limit for limit in reported.limits if limit != one_corpus(first)]
        changed = {
            **verdict_of_arms(reported.control, tests),
            "tests": tests,
            "comparisons": [*part["comparisons"], *(self._added(study.part, other) for other in others)],
            "limits": limits + [f"{name} was added after the verdict on {first}" for name in late],
            "cost": {name: amount + added[name] for name, amount in reported.cost},
            "machines": sorted({*reported.machines, *machines(results)}),
        }
        return changed | findings({**part, **changed})

    def _has_learned_nothing(self, study: TrainedStudy, reported: ReportedPart) -> bool:
        comparison, control = reported.comparisons[0], reported.control
        losses = comparison.losses[control].validation if comparison.losses else comparison.curves[control].high[-1:]
        return any(loss is None or is_near_guess(loss, study.arms[control]) for loss in losses)

    def _added(self, part: TrainedPart, comparison: Comparison) -> dict[str, Any]:
        about = {"date": now(), "code": CODE, "machines": machines(comparison.all_results())}
        return comparison_data(part, comparison) | {"added": about}


def _trained_parts(file: Path, data: Mapping[str, Any]) -> tuple[Experiment, list[tuple[TrainedPart, ReportedPart]]]:
    """Return the experiment of a report, after checking its hash, and the trained parts that were run."""
    try:
        report = Report.model_validate(data)
        were_run = [
            ReportedPart.model_validate(part.model_dump())
            for part in report.parts
            if "comparisons" in part.model_fields_set
        ]
    except ValidationError as error:
        field, (cause, _) = path(error.errors()[0]["loc"]), in_words(error.errors()[0])
        raise DataError(str(file), f"is not a report in full mode: {field} {cause}", WRITE_ANEW) from None
    experiment = Experiment.parse(report.experiment)
    # an edited report, or one of another version of the file format
    if experiment.hash != report.hash:
        cause = f"the experiment has the hash {experiment.hash}, not {report.hash}"
        raise DataError(str(file), cause, "make the report again with `archetype compare run`")
    reported = {part.id: part for part in were_run}
    trained = [part for part in experiment.parts if isinstance(part, TrainedPart)]
    return experiment, [(part, reported[part.id]) for part in trained if part.id in reported]


def _another(source: str | Mapping[str, Any], name: str) -> str | dict[str, Any]:
    # the added corpus keeps the other data settings, such as the tokenizer
    return name if isinstance(source, str) else {**source, "text": name}
