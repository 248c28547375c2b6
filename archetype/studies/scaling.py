"""Scaling laws: fit loss = E + A / N^a + B / D^b to small runs, and predict larger runs before they start.

N is the number of non-embedding parameters and D the number of training tokens (Hoffmann 2022, section 3.3).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archetype.data.held_out import Split
from archetype.errors import DataError
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.machine.environment import now
from archetype.spec.base import fingerprint
from archetype.studies.arms import Arm, build_arms, check_grid, quantities
from archetype.studies.corpora import prepare
from archetype.studies.evidence import DIRECTION, NOT_SHOWN, SHOWN, UNCALIBRATED
from archetype.studies.parts import ScalingLawPart
from archetype.studies.run_time import RunTime
from archetype.studies.settings import Match
from archetype.studies.statistics import scipy_package
from archetype.studies.store import RunRequest, Store
from archetype.studies.times import PlannedRun

NUM_BOOTSTRAPS = 200
HUBER = 1e-3  # threshold of the Huber loss on log residuals (Hoffmann 2022, appendix D)
STARTS = tuple((math.log(e), a_log, a, 4.0, 0.4) for e in (0.5, 1.0) for a_log in (1.0, 4.0) for a in (0.3, 0.6))
Vector = npt.NDArray[np.float64]


class Law(NamedTuple):
    """Scaling law E + A / N^a + B / D^b in the unit of the loss."""

    E: float
    A: float
    a: float
    B: float
    b: float

    def loss(self, parameters: float, tokens: float) -> float:
        return float(self.E + self.A / parameters**self.a + self.B / tokens**self.b)


@dataclass(frozen=True)
class Fit:
    """Scaling law fitted to runs, with bootstrap intervals.

    Attributes:
        intervals: 95 % bootstrap interval of each coefficient.
        error: root mean squared residual of the log loss.
        drawn: law fitted to each bootstrap sample.
    """

    law: Law
    intervals: dict[str, tuple[float, float]]
    error: float
    drawn: tuple[Law, ...]

    def predict(self, parameters: float, tokens: float) -> tuple[float, float, float]:
        """Return the predicted loss and its interval, which includes the variation between single runs."""
        value = self.law.loss(parameters, tokens)
        values = [law.loss(parameters, tokens) for law in self.drawn]
        low, high = np.quantile(values, [0.025, 0.975])
        # a residual of the log loss is a relative error of the loss; two standard deviations
        scatter = 2 * self.error * value
        return value, float(low) - scatter, float(high) + scatter


def fit_law(parameters: Sequence[float], tokens: Sequence[float], losses: Sequence[float]) -> Fit:
    """Fit a scaling law by the Huber loss of log residuals from many starting points, and bootstrap its intervals."""
    n, d, loss = (np.asarray(values, dtype=float) for values in (parameters, tokens, losses))
    # the fit has local minima: keep the best of several starts (Hoffmann 2022, appendix D)
    best = min((_fitted(n, d, loss, start) for start in STARTS), key=lambda result: result[1])
    law, _ = best
    generator, drawn = np.random.default_rng(0), []
    # bootstrap samples start at the law of all runs, instead of at every starting point
    start = (math.log(law.E), math.log(law.A), law.a, math.log(law.B), law.b)
    for _ in range(NUM_BOOTSTRAPS):
        resampled = generator.integers(len(n), size=len(n))
        drawn.append(_fitted(n[resampled], d[resampled], loss[resampled], start)[0])
    bounds = np.quantile(np.array(drawn), [0.025, 0.975], axis=0)
    intervals = {name: (float(low), float(high)) for name, low, high in zip(Law._fields, *bounds, strict=True)}
    residuals = np.log([law.loss(*row) for row in zip(n, d, strict=True)]) - np.log(loss)
    return Fit(law, intervals, float(np.sqrt(np.mean(residuals**2))), tuple(drawn))


def _fitted(n: Vector, d: Vector, loss: Vector, start: Sequence[float]) -> tuple[Law, float]:
    optimize = scipy_package("optimize")
    log_n, log_d, log_loss = np.log(n), np.log(d), np.log(loss)

    # rows: log E, log(A / N^a), log(B / D^b)
    def terms(x: Vector) -> Vector:
        return np.stack([np.full_like(log_n, x[0]), x[1] - x[2] * log_n, x[3] - x[4] * log_d])

    def residuals(x: Vector) -> Vector:
        return np.asarray(np.logaddexp.reduce(terms(x)) - log_loss)

    # analytic Jacobian of the residuals
    def slopes(x: Vector) -> Vector:
        logs = terms(x)
        e, a, b = np.exp(logs - np.logaddexp.reduce(logs))
        return np.stack([e, a, -a * log_n, b, -b * log_d], axis=1)

    # bounds of log E, log A, a, log B, b
    limits = ([-12, -12, 0.01, -12, 0.01], [4, 30, 2.5, 30, 2.5])
    result = optimize.least_squares(
        residuals, np.clip(start, *limits), slopes, bounds=limits, loss="huber", f_scale=HUBER
    )
    e, a_log, a, b_log, b = (float(value) for value in result.x)
    return Law(math.exp(e), math.exp(a_log), a, math.exp(b_log), b), float(result.cost)


class ScalingLawStudy:
    """Scaling-law part of an experiment in one mode: the largest size is predicted, then trained.

    Args:
        mode: quick uses fewer sizes and tokens.
        split: whether validation and test data come from everywhere in a text or from its end.
    """

    def __init__(
        self, part: ScalingLawPart, mode: str, data_folder: Path, store: Store, split: Split = "everywhere"
    ) -> None:
        self.part, self.store = part, store
        self.device = "cuda" if mode == "gpu" else "cpu"
        self.data = prepare(part.data[0], data_folder, store.folder, split)
        count = part.quick if mode == "quick" else len(part.sizes)
        sizes = dict(list(part.sizes.items())[:count])
        self.tokens = sorted(part.tokens)[: part.quick if mode == "quick" else None]
        self.arms = {
            tokens: {
                arm.name: arm
                for arm in build_arms(part.base, sizes, part.recipe, self.data, part.metric, tokens, Match())
            }
            for tokens in self.tokens
        }
        # sizes are ordered; the last is left out of the fit
        *self.fitted, self.largest = sizes
        if part.tune is not None:
            check_grid(self.arms[self.tokens[0]][self.largest], part.tune.grid)

    def _request(self, arm: Arm, seed: int, is_trial: bool = False) -> RunRequest:
        metrics = () if is_trial else (arm.metric,)
        recipe = arm.recipe.replace(seed=seed)
        return RunRequest(recipe, self.data.sha256, metrics, self.data.test, self.device)

    def _trials(self, size: str) -> list[tuple[dict[str, Any], RunRequest]]:
        if self.part.tune is None:
            return []
        # trials use the fewest tokens
        arm = self.arms[self.tokens[0]][size]
        points: list[dict[str, Any]] = [{}]
        for path, values in self.part.tune.grid.items():
            points = [point | {path: value} for point in points for value in values]
        seeds = self.part.tune.seeds
        return [(point, self._request(arm.changed(point), seed, True)) for point in points for seed in seeds]

    def _best(self, size: str) -> dict[str, Any]:
        losses: dict[str, list[float]] = {}
        trials = self._trials(size)
        for point, request in trials:
            result = self.store.result(request)
            assert result is not None
            losses.setdefault(json.dumps(point), []).append(result.validation_loss)
        return dict(json.loads(min(losses, key=lambda name: float(np.mean(losses[name]))))) if losses else {}

    def _runs(self, size: str) -> list[tuple[Arm, RunRequest]]:
        best = self._best(size)
        arms = [by_size[size].changed(best) if best else by_size[size] for by_size in self.arms.values()]
        return [(arm, self._request(arm, seed)) for arm in arms for seed in range(self.part.seeds)]

    def needed(self) -> list[RunRequest]:
        """Return the missing runs of the next stage: tuning trials, then the fitted runs, then the largest size."""
        trials = [request for size in self.arms[self.tokens[0]] for _, request in self._trials(size)]
        if missing := self._missing(trials):
            return missing
        if missing := self._missing([request for size in self.fitted for _, request in self._runs(size)]):
            return missing
        held_out = self._runs(self.largest)
        if missing := self._missing([request for _, request in held_out]):
            # written before the first run of the largest size is requested
            self.prediction()
            return missing
        return []

    def _missing(self, requests: Sequence[RunRequest]) -> list[RunRequest]:
        return [request for request in requests if self.store.result(request) is None]

    def points(self, sizes: Sequence[str]) -> list[dict[str, Any]]:
        points = []
        for size in sizes:
            for arm, request in self._runs(size):
                result = self.store.result(request)
                assert result is not None
                values, loss = quantities(arm), result.values[arm.metric.key]
                if not math.isfinite(loss):
                    cause = f"the run of {size} with {values['tokens']:,.0f} tokens diverged, so it has no loss to fit"
                    raise DataError(
                        f"parts.{self.part.id}", cause, "lower the learning rate of this run, or remove the size"
                    )
                points.append(
                    {
                        "size": size,
                        "parameters": values["non_embedding"],
                        "tokens": values["tokens"],
                        "loss": loss,
                        "seconds": result.about["seconds"],
                        "run": result.folder.name,
                    }
                )
        return points

    def prediction(self) -> dict[str, Any]:
        """Return the prediction for the largest size, which is written once, before that size is trained."""
        runs = self._runs(self.largest)
        # with the key of a run, which includes the versions of the code and of torch
        name = fingerprint(self.part) + "-" + runs[0][1].key
        file = self.store.folder / "predictions" / f"{name}.json"
        if not file.is_file():
            points = self.points(self.fitted)
            parameters, tokens, losses = ([point[key] for point in points] for key in ("parameters", "tokens", "loss"))
            fit = fit_law(parameters, tokens, losses)
            predicted = []
            for arm, _ in runs:
                values = quantities(arm)
                value, low, high = fit.predict(values["non_embedding"], values["tokens"])
                predicted.append(
                    {
                        "parameters": values["non_embedding"],
                        "tokens": values["tokens"],
                        "loss": value,
                        "low": low,
                        "high": high,
                    }
                )
            atomic.make_folder(file.parent)
            atomic.write_json(
                file,
                {
                    "date": now(),
                    "law": fit.law._asdict(),
                    "intervals": fit.intervals,
                    "error": fit.error,
                    "predicted": predicted,
                },
            )
        return read_json(file)

    def planned_runs(self) -> list[PlannedRun]:
        first = self.arms[self.tokens[0]]
        trials = [PlannedRun(arm, request, True) for size, arm in first.items() for _, request in self._trials(size)]
        arms, seeds = [arm for by_size in self.arms.values() for arm in by_size.values()], range(self.part.seeds)
        return trials + [PlannedRun(arm, self._request(arm, seed), False) for arm in arms for seed in seeds]

    def requests(self) -> tuple[list[RunRequest], list[RunRequest]]:
        """Return the requests for all trials and for all other runs. All trials must be done."""
        sizes = [*self.fitted, self.largest]
        trials = [request for size in sizes for _, request in self._trials(size)]
        return trials, [request for size in sizes for _, request in self._runs(size)]

    def stages(self) -> dict[str, tuple[int, int]]:
        """Return (done, total) for the trials, the fitted runs and the held-out runs."""
        trials = [request for size in [*self.fitted, self.largest] for _, request in self._trials(size)]
        left, per_size = len(self._missing(trials)), len(self.tokens) * self.part.seeds
        stages = {"trials": (len(trials) - left, len(trials))} if trials else {}
        for name, sizes in (("runs to fit", self.fitted), ("held-out runs", [self.largest])):
            # the best trial decides the requests of these runs, so they are unknown until all trials are done
            runs = [] if left else [request for size in sizes for _, request in self._runs(size)]
            stages[name] = (len(runs) - len(self._missing(runs)), per_size * len(sizes))
        return stages

    def plan(self, time_of_run: Callable[[Arm], RunTime]) -> dict[str, Any]:
        first = self.arms[self.tokens[0]]
        is_timed = self.device == "cpu"
        times = {size: time_of_run(arm) if is_timed else RunTime(0.0) for size, arm in first.items()}
        planned = self.planned_runs()
        trials = [run for run in planned if run.is_trial]
        seconds = [time_of_run(run.arm).of(run.arm.recipe, not run.is_trial) for run in planned if is_timed]
        runs = len(planned) - len(trials)
        return {
            "trials": len(trials),
            "pairs": runs,
            "runs": runs + len(trials),
            "minutes": sum(seconds) / 60 if is_timed else None,
            "tokens": sum(self.tokens) * len(first) * self.part.seeds + len(trials) * self.tokens[0],
            "arms": {size: quantities(arm) | {"solved": ""} for size, arm in first.items()},
            "seconds_per_step": {size: time.step for size, time in times.items()} if is_timed else {},
            "detectable": None,
            "deviation": None,
        }

    def outcome(self, quick: bool, is_calibrated: bool) -> dict[str, Any]:
        """Return the fitted law with its intervals, the prediction and the measured losses."""
        prediction, seen = self.prediction(), self.points([self.largest])
        # relative error of each prediction
        offs = [abs(p["loss"] - s["loss"]) / s["loss"] for p, s in zip(prediction["predicted"], seen, strict=True)]
        within = all(off <= self.part.margin for off in offs)
        law, last = Law(**prediction["law"]), prediction["predicted"][-1]
        verdict = SHOWN if within else NOT_SHOWN
        if quick or not is_calibrated:
            verdict = DIRECTION if quick else UNCALIBRATED
        fitted = self.points(self.fitted)
        reason = (
            f"loss = {law.E:.3f} + {law.A:.3g} / N^{law.a:.3f} + {law.B:.3g} / D^{law.b:.3f}; of the largest "
            f"it predicted {last['loss']:.4f} [{last['low']:.4f}, {last['high']:.4f}], and {seen[-1]['loss']:.4f} came"
        )
        return {
            "id": self.part.id, "type": "scaling_law", "says": self.part.says, "verdict": verdict, "reason": reason,
            "is_supported": verdict == SHOWN, "claimed": SHOWN,
            "metric": self.part.metric.dump(full=True),
            "law": prediction["law"], "intervals": prediction["intervals"], "error": prediction["error"],
            "predicted_on": prediction["date"], "predicted": prediction["predicted"], "seen": seen, "fitted": fitted,
            "margin": self.part.margin, "expect": self.part.expect.dump(), "limits": [f"one corpus, {self.data.name}"],
            "cost": {"runs": len(fitted) + len(seen), "seconds": sum(p["seconds"] for p in (*fitted, *seen))},
        }  # fmt: skip
