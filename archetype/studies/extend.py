"""A report in full mode, extended by other corpora and sizes: the arms as the report tuned them, with a few seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.files import read_json
from archetype.runs.environment import now
from archetype.studies.calibration import read_calibration
from archetype.studies.experiment import Experiment, TrainedPart
from archetype.studies.store import RunRequest, Store, code_version
from archetype.studies.study import whole_verdict
from archetype.studies.sweep import Engine, Progress, Say, make_needed
from archetype.studies.trained import Comparison, TrainedStudy, Trials, confirmed
from archetype.studies.trained_outcome import comparison_data, cost, machines, one_corpus


class ReportExtension:
    """The runs of `extended` that a report in full mode lacks.

    Its own runs need not be there: they may have been made on another machine.

    Args:
        file: the JSON of the report.
        corpora: further ones than its experiment names, beside its first.
        data_folder: of the corpora.
        store: of the runs.

    Raises:
        ArchetypeError: the file is no report in full mode, there is nothing to extend it by, a corpus is missing, or
            this machine is not calibrated.
    """

    def __init__(self, file: Path, corpora: Sequence[str], data_folder: Path, store: Store) -> None:
        self.report, self.store, self.corpora = read_json(file), store, tuple(corpora)
        parts = _trained_parts(file, self.report)
        calibration = read_calibration(store)
        if not (calibration and calibration["passed"]):
            cause = "this machine has not shown what it can tell apart"
            raise DataError(str(file), cause, "run `archetype compare calibrate` first")
        self.studies: dict[str, TrainedStudy] = {}
        self.trials: dict[str, Trials] = {}
        for part in parts:
            data = part.data + tuple(_another(part.data[0], name) for name in corpora if _is_text(part.data[0]))
            study = TrainedStudy(part.replace(data=data), "extended", data_folder, store)
            if len(study.sources) + len(study.mode.sizes) > 1:
                self.studies[part.id] = study
                self.trials[part.id] = _recorded_trials(self._part(part.id)) or study.trials()[0]
        if not self.studies:
            raise DataError(str(file), "its parts name no other corpus and no other size", "name one with --corpus")

    def _part(self, name: str) -> dict[str, Any]:
        return next(dict(part) for part in self.report["parts"] if part["id"] == name)

    def needed(self) -> list[RunRequest]:
        """The runs that are not there yet."""
        return [
            request
            for name, study in self.studies.items()
            for request in study.needed_of_others(self.trials[name], _further(self._part(name)))
        ]

    def run(self, engine: Engine, say: Say = lambda line: None, progress: Progress = lambda done, total: None) -> None:
        """Make them."""
        make_needed(self.needed, self.store, engine, say, progress)

    def outcome(self) -> dict[str, Any]:
        """The report with what the other corpora and sizes gave; a part that one of them denies is not shown."""
        parts = [
            self._extended(part, self.studies[part["id"]]) if part["id"] in self.studies else part
            for part in self.report["parts"]
        ]
        return self.report | {"mode": "extended", "verdict": whole_verdict(parts), "parts": parts}

    def _extended(self, part: Mapping[str, Any], study: TrainedStudy) -> dict[str, Any]:
        """A part with the comparisons that it lacks."""
        first = part["comparisons"][0]["name"]
        trials = self.trials[study.part.id]
        others = study.others(trials, _further(part))
        evidence = [(comparison.name, study.evidence(trials, comparison)) for comparison in others]
        effect = part["effect"]["effect"][0]
        verdict, reason = confirmed(study.part, part["verdict"], part["reason"], effect, first, evidence)
        results = [result for comparison in others for result in comparison.all_results()]
        added = cost(results)
        late = [name for name in self.corpora if name in {comparison.name for comparison in others}]
        limits = [limit for limit in part["limits"] if limit != one_corpus(first)]
        return dict(part) | {
            "verdict": verdict, "reason": reason, "is_supported": verdict == part["claimed"],
            "comparisons": [*part["comparisons"], *(self._added(study.part, one) for one in others)],
            "limits": limits + [f"{name} was added after the verdict on {first}" for name in late],
            "cost": {name: number + added[name] for name, number in part["cost"].items()},
            "machines": sorted({*part["machines"], *machines(results)}),
        }  # fmt: skip

    def _added(self, part: TrainedPart, comparison: Comparison) -> dict[str, Any]:
        about = {"date": now(), "code": code_version(), "machines": machines(comparison.all_results())}
        return comparison_data(part, comparison) | {"added": about}


def _trained_parts(file: Path, report: Mapping[str, Any]) -> list[TrainedPart]:
    """The trained parts of a report that were run; its experiment must be the one whose hash it bears."""
    if report.get("mode") not in ("full", "extended") or "experiment" not in report:
        raise DataError(str(file), "is no report in full mode", "give the .json that `compare run --to` wrote")
    experiment = Experiment.parse(report["experiment"])
    if experiment.hash != report["hash"]:
        cause = f"its experiment has the hash {experiment.hash}, not {report['hash']}"
        raise DataError(str(file), cause, "make the report anew with `archetype compare run`")
    were_run = {part["id"] for part in report["parts"] if part.get("comparisons")}
    return [part for part in experiment.parts if isinstance(part, TrainedPart) and part.id in were_run]


def _further(part: Mapping[str, Any]) -> set[str]:
    """The corpora and sizes that a part of a report has beside the first."""
    return {comparison["name"] for comparison in part["comparisons"][1:]}


def _recorded_trials(part: Mapping[str, Any]) -> Trials | None:
    """The trials of a part of a report; None where there were none."""
    tuning = part["tuning"]
    best = {name: tuple(about["best"]) for name, about in tuning["arms"].items()}
    return Trials(tuple(tuning["paths"]), {}, best, tuning["is_interior"]) if best else None


def _is_text(source: str | Mapping[str, Any]) -> bool:
    return isinstance(source, str) or "text" in source


def _another(source: str | Mapping[str, Any], name: str) -> str | dict[str, Any]:
    """A corpus with the tokenizer of another one."""
    return name if isinstance(source, str) else {**source, "text": name}
