"""Trained part of an experiment: the runs that it needs next, and their comparison."""

import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archetype.data.held_out import Split
from archetype.studies import arms as arms_module
from archetype.studies.arms import Arm, build_arms, check_grid, check_metric
from archetype.studies.corpora import StudyData, prepare, with_tokenizer
from archetype.studies.evidence import Evidence
from archetype.studies.parts import TrainedPart
from archetype.studies.settings import Metric, Mode, Source, Tune
from archetype.studies.store import RunRequest, RunResult, Store
from archetype.studies.times import PlannedRun
from archetype.studies.trials import Point, Trials, best, edges, extend

FEW_SEEDS = 4  # for further corpora and sizes
NEAR_BASELINE = 0.1  # nats; a run whose loss is this close to guessing has failed to learn


@dataclass
class Comparison:
    """Results of all arms on one corpus and model size.

    Attributes:
        name: name of the corpus, followed by the model size if it is not the first.
        data_sha256: hash of the training and test data.
        arms: arms by name, with tuned hyperparameters.
        values: metric value of each arm and seed.
        results: run results of each arm and seed.
    """

    name: str
    data_sha256: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    values: dict[str, list[float]]
    results: dict[str, list[RunResult]]

    def all_results(self) -> list[RunResult]:
        return [result for many in self.results.values() for result in many]


class TrainedStudy:
    """Trained part of an experiment in one mode.

    Args:
        mode_name: quick, full, extended or gpu.
        split: whether validation and test data come from everywhere in a text or from its end.

    Raises:
        ArchetypeError: an arm is invalid or cannot be matched, or a corpus is missing.
    """

    def __init__(
        self, part: TrainedPart, mode_name: str, data_folder: Path, store: Store, split: Split = "everywhere"
    ) -> None:
        self.part, self.mode_name, self.store = part, mode_name, store
        full, chosen_mode = part.modes.full, getattr(part.modes, mode_name)
        mode: Mode = chosen_mode or full
        if mode_name == "quick" and mode.tokens is None and full.tokens is not None:
            # a twelfth of the tokens, so that quick stays within a minute
            mode = mode.replace(tokens=max(1, full.tokens // 12))
        self.mode = mode.replace(tokens=mode.tokens or full.tokens)
        self.is_quick = mode_name == "quick"
        self.device = self.mode.device or ("cuda" if mode_name == "gpu" and chosen_mode else "cpu")
        self.num_seeds = self.mode.seeds or (2 if self.is_quick else part.seeds)
        none = self.mode.tune == "none" or (self.is_quick and self.mode.tune is None)
        self.tune = None if none else (self.mode.tune if isinstance(self.mode.tune, Tune) else part.tune)
        sources = self.mode.data or part.data
        self.sources = sources if mode_name == "extended" else sources[:1]
        # arms that start from weights read tokens of their donor
        folder = next((str(change["from"]) for change in part.arms.values() if change.get("from")), None)
        read = self.sources if folder is None else tuple(with_tokenizer(source, folder) for source in self.sources)
        self.data = [prepare(source, data_folder, store.folder, split) for source in read]
        for metric in part.retained:
            check_metric(metric, bool(self.data[0].test))
        self.arms = self._arms(self.mode.base or part.base, self.data[0])
        if part.tune is not None:
            for arm in self.arms.values():
                check_grid(arm, part.tune.grid)

    def _arms(self, base: Source | None, data: StudyData) -> dict[str, Arm]:
        part = self.part
        arms = build_arms(base, part.arms, part.recipe, data, part.metric, self.mode.tokens, part.match)
        return {arm.name: arm for arm in arms}

    def needed(self) -> list[RunRequest]:
        """Return the missing runs of the next stage: trials, then pairs on all corpora and sizes."""
        trials, requests = self.trials()
        if missing := self._missing(requests):
            return missing
        requests = [request for group in self._groups(trials) for request in self._pairs(*group[1:])]
        return self._missing(requests)

    def _missing(self, requests: Sequence[RunRequest]) -> list[RunRequest]:
        return [request for request in requests if self.store.result(request) is None]

    def stages(self) -> dict[str, tuple[int, int]]:
        """Return (done, total) for trials and pairs, assuming that no grid is extended further."""
        trials, requests = self.trials()
        missing = self._missing(requests)
        pairs = [] if missing else [request for group in self._groups(trials) for request in self._pairs(*group[1:])]
        stages = {"trials": (len(requests) - len(missing), len(requests))} if requests else {}
        return stages | {"pairs": (len(pairs) - len(self._missing(pairs)), len(pairs) or self.count()["pairs"])}

    def count(self) -> dict[str, int]:
        """Return the number of trials, pairs, runs and tokens, assuming that no grid is extended."""
        planned = self.planned_runs()
        trials, runs = sum(run.is_trial for run in planned), len({(run.request.key, run.is_trial) for run in planned})
        tokens = sum({(run.request.key, run.is_trial): run.arm.tokens for run in planned}.values())
        return {"trials": trials, "pairs": len(planned) - trials, "runs": runs, "tokens": tokens}

    def planned_runs(self) -> list[PlannedRun]:
        """Return every run on every corpus and size, assuming that no grid is extended. Pairs use untuned arms."""
        groups = [(arms, FEW_SEEDS) for arms in self._other_arms()]
        pairs = [
            PlannedRun(arm, self._request(arm, seed), False)
            for arms, seeds in [(self.arms, self.num_seeds), *groups]
            for seed in range(seeds)
            for arm in arms.values()
        ]
        if self.tune is None:
            return pairs
        # optimizer settings do not change the time, so that all points can share one measurement
        same = all(path.startswith("optimizer.") for path in self.tune.grid)
        trials = [
            PlannedRun(arm if same else changed, self._request(changed, seed, is_trial=True), True)
            for point in itertools.product(*self.tune.grid.values())
            for seed in self.tune.seeds
            for arm in self.arms.values()
            for changed in [arm.changed(dict(zip(self.tune.grid, point, strict=True)))]
        ]
        return trials + pairs

    def requests(self) -> tuple[list[RunRequest], list[RunRequest]]:
        """Return the requests for all trials and for all pairs. The trials must be done."""
        trials, requests = self.trials()
        return requests, [request for group in self._groups(trials) for request in self._pairs(*group[1:])]

    def _other_arms(self) -> Iterator[dict[str, Arm]]:
        for data in self.data[1:]:
            yield self._arms(self.mode.base or self.part.base, data)
        for base in self.mode.sizes:
            yield self._arms(base, self.data[0])  # further sizes read the deciding corpus

    def _trial(self, paths: tuple[str, ...], point: Point) -> list[RunRequest]:
        assert self.tune is not None
        values = dict(zip(paths, point, strict=True))
        return [
            self._request(arm.changed(values), seed, is_trial=True)
            for seed in self.tune.seeds
            for arm in self.arms.values()
        ]

    def _request(self, arm: Arm, seed: int, is_trial: bool = False) -> RunRequest:
        recipe = arm.recipe.replace(seed=seed + arm.seed_offset)
        metrics = () if is_trial else (arm.metric, *self.part.retained)
        return RunRequest(recipe, arm.data.sha256, metrics, arm.data.test, self.device, arm.start)

    def trials(self) -> tuple[Trials, list[RunRequest]]:
        """Return the trials, empty until all are done, and their requests. A grid is extended for all arms together."""
        if self.tune is None:
            middle = {}
            if self.part.tune is not None:  # use the middle of the grid without trials
                middle = {path: values[len(values) // 2] for path, values in self.part.tune.grid.items()}
            return Trials(tuple(middle), {}, dict.fromkeys(self.arms, tuple(middle.values())), True), []
        grid = {path: list(values) for path, values in self.tune.grid.items()}
        paths = tuple(grid)
        for extension in range(self.tune.extend + 1):
            points = list(itertools.product(*grid.values()))
            requests = [request for point in points for request in self._trial(paths, point)]
            # unfinished trials do not tell yet whether the grid is extended
            if self._missing(requests):
                return Trials(paths, {}, {}, False), requests
            trials = self._judged(paths, points)
            # one arm's best at an edge extends the grid of all, so that all have equally many trials
            at_edges = {edge for point in trials.best.values() for edge in edges(grid, point)}
            trials.is_interior = not at_edges
            if not at_edges or extension == self.tune.extend:
                return trials, requests
            for path, at_end in at_edges:
                extend(grid[path], at_end)
        raise AssertionError("the last extension returns")

    def _judged(self, paths: tuple[str, ...], points: Sequence[Point]) -> Trials:
        losses: dict[str, dict[Point, float]] = {}
        failed: dict[str, tuple[int, int]] = {}
        assert self.tune is not None
        for arm in self.arms.values():
            scores: dict[Point, float] = {}
            bad = total = 0
            for point in points:
                changed = arm.changed(dict(zip(paths, point, strict=True)))
                results = [self.store.result(self._request(changed, seed, is_trial=True)) for seed in self.tune.seeds]
                values = []
                for result in results:
                    assert result is not None
                    values.append(result.validation_score(self.part.metric))
                    bad += learned_nothing(result, arm)
                    total += 1
                scores[point] = float(np.mean(values))
            losses[arm.name], failed[arm.name] = scores, (bad, total)
        return Trials(paths, losses, {name: best(scores) for name, scores in losses.items()}, True, failed)

    def _groups(self, trials: Trials) -> list[tuple[str, dict[str, Arm], tuple[int, ...]]]:
        # the deciding corpus and size, then the others
        groups = [(self.data[0].name, self.arms, tuple(range(self.num_seeds)))]
        for index, arms in enumerate(self._other_arms(), 1):
            first = next(iter(arms.values()))
            is_size = index >= len(self.data)
            size = f", {arms_module.quantities(first)['non_embedding']:,.0f} parameters" if is_size else ""
            groups.append((f"{first.data.name}{size}", arms, tuple(range(FEW_SEEDS))))
        return [
            (name, {arm.name: self._tuned(arm, trials) for arm in arms.values()}, seeds) for name, arms, seeds in groups
        ]

    def _tuned(self, arm: Arm, trials: Trials) -> Arm:
        return arm.changed(dict(zip(trials.paths, trials.best[arm.name], strict=True))) if trials.paths else arm

    def _pairs(self, arms: Mapping[str, Arm], seeds: Sequence[int]) -> list[RunRequest]:
        # by seed, so that an interrupted sweep is balanced
        return [self._request(arm, seed) for seed in seeds for arm in arms.values()]

    def comparisons(self) -> tuple[Trials, list[Comparison]]:
        """Return the trials, and a comparison on every corpus and size. All runs must be done."""
        trials, _ = self.trials()
        return trials, [self._comparison(*group) for group in self._groups(trials)]

    def needed_of_others(self, trials: Trials, known: Container[str] = ()) -> list[RunRequest]:
        """Return the missing runs of the comparisons that `others` returns; same arguments."""
        groups = [group for group in self._groups(trials)[1:] if group[0] not in known]
        return self._missing([request for _, arms, seeds in groups for request in self._pairs(arms, seeds)])

    def others(self, trials: Trials, known: Container[str] = ()) -> list[Comparison]:
        """Return the comparisons on all corpora and sizes except the first and those named in `known`."""
        return [self._comparison(*group) for group in self._groups(trials)[1:] if group[0] not in known]

    def _comparison(self, name: str, arms: dict[str, Arm], seeds: tuple[int, ...]) -> Comparison:
        results: dict[str, list[RunResult]] = {}
        values: dict[str, list[float]] = {}
        for arm in arms.values():
            taken = [self.store.result(self._request(arm, seed)) for seed in seeds]
            results[arm.name] = [result for result in taken if result is not None]
            values[arm.name] = [result.values[arm.metric.key] for result in results[arm.name]]
        return Comparison(name, next(iter(arms.values())).data.sha256, arms, seeds, values, results)

    def evidence(self, trials: Trials, comparison: Comparison) -> dict[str, Evidence]:
        """Return, for each tested arm, the measurements that decide the verdict and the faults of its runs."""
        control, others = self.part.compared
        arm, seeds = comparison.arms[control], range(len(comparison.seeds))
        bad = sum(learned_nothing(result, arm) for result in comparison.results[control])
        failed = f"{bad} of {len(seeds)} runs of {control} learned no more than a guess" if bad else ""
        is_lower, evidence = arm.metric.better == "lower", {}
        for other in others:
            needed = [*comparison.values] if self.part.decide.takes_all_arms else [control, other]
            # runs without a finite value, by arm
            lost = {name: sum(not math.isfinite(value) for value in comparison.values[name]) for name in needed}
            # pairs need a finite value of both arms
            measured = [seed for seed in seeds if all(math.isfinite(comparison.values[name][seed]) for name in needed)]
            values = {name: tuple(comparison.values[name][seed] for seed in measured) for name in comparison.values}
            unmeasured = ", ".join(f"{count} of {len(seeds)} runs of {name}" for name, count in lost.items() if count)
            of_arm = Evidence(
                values[control],
                values[other],
                is_lower,
                trials.is_interior,
                failed,
                unmeasured and f"{unmeasured} ended without a finite loss",
                values,
            )
            if not (arm.is_trained or comparison.arms[other].is_trained or unmeasured):
                first, second = comparison.results[control][0], comparison.results[other][0]
                of_arm = _without_seeds(of_arm, first, second, arm.metric)
            evidence[other] = of_arm
        return evidence


def _without_seeds(evidence: Evidence, control: RunResult, treated: RunResult, metric: Metric) -> Evidence:
    """Return the evidence with the values of passages.

    Other seeds would repeat the same values. A metric without passages has one value of each model.
    """
    key = metric.key
    pairs = [
        [right / answers for right, answers in zip(*result.examples.get(key, ((), ())), strict=True) if answers]
        for result in (control, treated)
    ]
    before, after = (
        tuple(pair) or (result.values[key],) for pair, result in zip(pairs, (control, treated), strict=True)
    )
    return replace(evidence, control=before, treated=after, by_arm={})


def learned_nothing(result: RunResult, arm: Arm) -> bool:
    return result.has_diverged or is_near_guess(result.validation_loss, arm)


def is_near_guess(loss: float, arm: Arm) -> bool:
    # synthetic data has one loss of guessing
    guess = arm.data.baseline.get("validation_loss", arm.data.baseline["loss"])
    return loss > guess - NEAR_BASELINE
