"""Study of an experiment: plan, runs, and outcome as plain data."""

import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from archetype.errors import DataError, SpecError, errors_at
from archetype.machine.environment import environment, now
from archetype.studies.arms import quantities
from archetype.studies.calibration import calibration_file, check_is_calibration, read_calibration, write_calibration
from archetype.studies.evidence import DIRECTION, NOT_RUN, NOT_SHOWN, SHOWN
from archetype.studies.execute import one_thread
from archetype.studies.experiment import Experiment, read_experiment
from archetype.studies.parts import CheckPart, ScalingLawPart, TrainedPart
from archetype.studies.registry import find, run
from archetype.studies.run_time import time_of_run
from archetype.studies.scaling import ScalingLawStudy
from archetype.studies.spent import Spent, clock, clock_with_workers
from archetype.studies.statistics import (
    minimal_detectable_effect,
    scipy_package,
)
from archetype.studies.store import CODE, RunRequest, Store, heartbeat, seconds_since_beat, state_of
from archetype.studies.sweep import Engine, Progress, Say, make_needed
from archetype.studies.times import Probes, keep_command, keep_promise, promised, times
from archetype.studies.trained import TrainedStudy
from archetype.studies.trained_outcome import trained_outcome
from archetype.studies.verdicts import announced, study_verdicts, whole_verdict

NEEDS_CALIBRATION = (
    "there will be no verdicts, since this machine is not calibrated; "
    "run `archetype compare calibrate` once, before or after"
)
USUAL_DEVIATION = 0.01  # assumed deviation of paired differences relative to the mean, before a calibration


class Study:
    """Experiment in one mode.

    Args:
        mode: quick, full, extended or gpu.
        exact: train nothing; if a run is missing, report all trained parts as not run.
        began: start of the command, for its reported time (default: now).
    """

    def __init__(
        self,
        experiment: Experiment,
        mode: str,
        data_folder: Path,
        store: Store,
        exact: bool = False,
        began: Spent | None = None,
    ) -> None:
        self.began, self._has_run = began or clock_with_workers(), False
        scipy_package("special")  # needed only at the end; fail before the first run if it is missing
        self.experiment, self.mode, self.store = experiment, mode, store
        self.parts = experiment.parts
        for part in self.parts:
            if isinstance(part, CheckPart):
                check_type(part)
        self.trained: dict[str, TrainedStudy] = {}
        self.laws: dict[str, ScalingLawStudy] = {}
        if exact and not (store.folder / "runs").is_dir():
            return
        try:
            for index, part in enumerate(self.parts):
                with errors_at(f"parts[{index}]", SpecError):
                    if isinstance(part, TrainedPart):
                        self.trained[part.id] = TrainedStudy(part, mode, data_folder, store, experiment.split)
                    elif isinstance(part, ScalingLawPart):
                        self.laws[part.id] = ScalingLawStudy(part, mode, data_folder, store, experiment.split)
        except DataError:  # without its corpus no run can exist
            if not exact:
                raise
            self.trained, self.laws = {}, {}
        if exact and self.needed():
            self.trained, self.laws = {}, {}  # all or none, since Holm's correction covers all parts
        if experiment.is_calibration:
            check_is_calibration(experiment)

    @property
    def without_verdict(self) -> str:
        """Reason why trained parts cannot get a verdict on this machine; empty if they can."""
        if self.mode == "quick" or self.experiment.is_calibration or not (self.trained or self.laws):
            return ""
        calibration = read_calibration(self.store)
        return "" if calibration and calibration["passed"] else NEEDS_CALIBRATION

    @property
    def name(self) -> str:
        return f"{self.experiment.hash}-{self.mode}"

    @property
    def studies(self) -> dict[str, TrainedStudy | ScalingLawStudy]:
        return {**self.trained, **self.laws}

    def promise(self, time_of: Probes, workers: int) -> dict[str, Any]:
        planned = [run for study in self.studies.values() if study.device == "cpu" for run in study.planned_runs()]
        # less the CPU time of this process before the command began, which workers do not repeat
        return promised(planned, time_of, workers, lambda: clock() - Spent(0.0, self.began.busy))

    def plan(self, workers: int = 1) -> dict[str, Any]:
        """Return the planned runs and tokens, the expected time, the matched quantities and the detectable effect.

        Minutes are null for runs on a GPU. The expected time is recorded and shown in the report next to the actual
        time.
        """
        calibration, parts = read_calibration(self.store), {}
        deviation = calibration["deviation"] if calibration else USUAL_DEVIATION
        time_of = Probes(self.store, time_of_run)
        for name, study in self.trained.items():
            is_timed = study.device == "cpu"
            planned = [(run, time_of(run.arm)) for run in study.planned_runs() if is_timed]
            seconds = {run.request.key: time.of(run.arm.recipe, not run.is_trial) for run, time in planned}
            parts[name] = study.count() | {
                "minutes": sum(seconds.values()) / 60 if is_timed else None,
                "arms": {arm.name: quantities(arm) | {"solved": arm.solved} for arm in study.arms.values()},
                "seconds_per_step": {arm.name: time_of(arm).step for arm in study.arms.values() if is_timed},
                "detectable": minimal_detectable_effect(deviation, study.num_seeds) if study.num_seeds > 1 else None,
                "deviation": deviation,
            }
        for name, law in self.laws.items():
            parts[name] = law.plan(time_of)
        promise = self.promise(time_of, workers)
        keep_promise(self.store, self.name, promise)
        checks = {part.id: part.check for part in self.parts if isinstance(part, CheckPart)}
        return {
            "hash": self.experiment.hash,
            "mode": self.mode,
            "parts": parts,
            "checks": checks,
            "without_verdict": self.without_verdict,
            "workers": workers,
            "time": promise,
            "calibration": self._calibration_promise(time_of, workers) if self.without_verdict else None,
        }

    def _calibration_promise(self, time_of: Probes, workers: int) -> dict[str, Any]:
        calibration = Study(read_experiment(calibration_file()), "full", self.store.folder, self.store)
        return calibration.promise(time_of, workers)

    def needed(self) -> list[RunRequest]:
        return [request for study in self.studies.values() for request in study.needed()]

    def run(self, engine: Engine, say: Say = lambda line: None, progress: Progress = lambda done, total: None) -> None:
        """Train all missing runs: trials, extensions of their grids, then pairs."""
        self._has_run = bool(self.needed())
        try:
            make_needed(self.needed, self.store, engine, say, progress)
        except BaseException:
            self._keep_command()
            raise

    def _keep_command(self) -> None:
        if self._has_run:
            keep_command(self.store, self.name, clock_with_workers() - self.began)
        # counted once, whether the command fails or writes a report
        self._has_run = False

    def status(self) -> dict[str, Any]:
        """Return the finished trials and pairs of each part, and states and heartbeats of the current stage's runs."""
        keys = list(dict.fromkeys(request.key for request in self.needed()))
        states = [state_of(self.store.run_folder(key)) or "not started" for key in keys]
        running = {
            key: (heartbeat(folder := self.store.run_folder(key)), seconds_since_beat(folder))
            for key, state in zip(keys, states, strict=True)
            if state == "running"
        }
        return {
            "stages": {name: study.stages() for name, study in self.studies.items()},
            "left": len(keys),
            "states": {state: states.count(state) for state in dict.fromkeys(states)},
            "running": {key: about | {"seconds_ago": ago} for key, (about, ago) in running.items()},
        }

    def outcome(self) -> dict[str, Any]:
        """Return everything that a report shows, as plain data. All runs must be done.

        docs/guide/studies.md describes the fields.
        """
        experiment, quick = self.experiment, self.mode == "quick"
        calibration = read_calibration(self.store)
        # the calibration itself must be judged without one
        is_calibrated = experiment.is_calibration or bool(calibration and calibration["passed"])
        compared = {name: study.comparisons() for name, study in self.trained.items()}
        evidences = {
            (name, arm): evidence
            for name, (trials, comparisons) in compared.items()
            for arm, evidence in self.trained[name].evidence(trials, comparisons[0]).items()
        }
        # all trained parts together, since Holm's correction covers the whole study
        judged = study_verdicts(
            [(self.trained[name].part.decide, evidence) for (name, _), evidence in evidences.items()]
        )
        verdicts = dict(zip(evidences, judged, strict=True))
        parts: list[dict[str, Any]] = []
        for part in self.parts:
            if isinstance(part, CheckPart):
                parts.append(_checked(part, quick))
            elif part.id not in self.trained and part.id not in self.laws:
                parts.append(_not_run(part, experiment.claim))
            elif isinstance(part, ScalingLawPart):
                parts.append(self.laws[part.id].outcome(quick, is_calibrated))
            else:
                evidence_of_part = {
                    arm: replace(verdict, verdict=announced(verdict, quick, is_calibrated))
                    for (name, arm), verdict in verdicts.items()
                    if name == part.id
                }
                parts.append(trained_outcome(self.trained[part.id], *compared[part.id], evidence_of_part))
        if experiment.is_calibration and not quick:
            same = next(key for key in verdicts if key[0] == "same")
            share = (verdicts[same].deviation or 0.0) / abs(statistics.mean(evidences[same].control))
            write_calibration(self.store, experiment, {part["id"]: part["verdict"] for part in parts}, share)
        self._keep_command()
        requests = [study.requests() for study in self.studies.values()]
        trials, pairs = ([run for kinds in requests for run in kinds[side]] for side in (0, 1))
        return {
            "version": 1,
            "claim": experiment.claim,
            "title": experiment.title,
            "sentence": experiment.sentence,
            "headline": experiment.headline,
            "mode": self.mode,
            "hash": experiment.hash,
            "code": CODE,
            "date": now(),
            "environment": environment(),
            "calibration": calibration,
            "verdict": whole_verdict(parts),
            "parts": parts,
            "experiment": experiment.dump(),
            "times": times(self.store, self.name, trials, pairs),
        }


def _not_run(part: TrainedPart | ScalingLawPart, claim: int | None) -> dict[str, Any]:
    command = f"archetype compare claim {claim}" if claim else "archetype compare run"
    return {
        "id": part.id,
        "type": part.type,
        "says": part.says,
        "verdict": NOT_RUN,
        "is_supported": False,
        "reason": f"it is trained by `{command}`",
        "expect": part.expect.dump(),
        "cost": {"seconds": 0.0},
    }


def check_type(part: CheckPart) -> None:
    """Refuse a part whose type is not the kind of its check.

    Raises:
        SpecError: type and kind differ, or the check does not exist.
    """
    if (kind := find(part.check).kind) != part.type:
        cause = f"{part.type} is not the kind of {part.check}"
        raise SpecError(f"parts.{part.id}.type", cause, f"write {kind}")


def _checked(part: CheckPart, quick: bool) -> dict[str, Any]:
    started = time.perf_counter()
    # checks, like runs, must give the same numbers on every machine
    with one_thread():
        result = run(part.check, quick=quick)
    return {
        "id": part.id,
        "type": part.type,
        "says": part.says,
        "check": part.check,
        "verdict": DIRECTION if quick and part.type == "timing" else SHOWN if result.holds else NOT_SHOWN,
        "is_supported": result.holds,
        "reason": result.sentence,
        "values": dict(result.values),
        "controls": [asdict(control) for control in result.controls],
        "curves": [asdict(curve) for curve in result.curves],
        "expect": part.expect.dump(),
        "cost": {"seconds": time.perf_counter() - started},
    }
