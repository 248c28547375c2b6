"""Architecture search by successive halving over changes of a model, within limits from the cost model.

Many candidates are trained on few tokens, the better ones on more (Jamieson 2016). A candidate is better if it has a
lower validation loss or a lower cost. The test set is used once, at the end, only for the Pareto front: selection by
test results would bias them. Runs are shared with all studies, so an interrupted search resumes, and a search with more
candidates reuses finished runs.
"""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from archetype.data.held_out import Split
from archetype.errors import ArchetypeError, SpecError, errors_at
from archetype.io.yaml import read_mapping
from archetype.machine.environment import environment, now
from archetype.spec.base import Positive, Size, Spec, fingerprint
from archetype.spec.errors import invalid
from archetype.studies.arms import Arm, build_arms, quantities
from archetype.studies.corpora import prepare
from archetype.studies.experiment import put_files_in_place
from archetype.studies.parts import check_recipe
from archetype.studies.settings import Corpora, Count, Match, Metric, Seed, Share, Source, check_number_of_runs
from archetype.studies.store import CODE, RunRequest, Store
from archetype.studies.sweep import Engine, Progress

Quantity = Literal["parameters", "non_embedding", "active", "flops_per_token", "state_bytes"]


MAX_SPACE = 100_000  # largest number of candidates in a space


class SearchFile(Spec):
    """Search space of changes to a model, and the search budget.

    Attributes:
        version: version of the file format.
        title: title of a few words.
        base: model that all candidates modify.
        space: possible values of each path (as in an arm of an experiment); a candidate takes one value for each path.
        candidates: number of sampled candidates (absent: all).
        seed: seed of the sampling and of the runs.
        limits: largest allowed value of each quantity.
        data: training data; the first entry is used.
        recipe: training recipe.
        metric: test metric of the Pareto front; candidates are ranked by the same metric on validation data.
        rungs: training tokens of each rung, in increasing order.
        keep: fraction of the candidates that continue to the next rung.
        cost: quantity weighed against validation loss or accuracy.
        split: whether validation and test data come from everywhere in a text or from its end.
    """

    version: Literal[1] = 1
    title: str
    base: Source
    space: dict[str, tuple[Any, ...]]
    candidates: Size | None = None
    seed: Seed = 0
    limits: dict[Quantity, Positive] = {}  # noqa: RUF012  # pydantic copies it
    data: Corpora
    recipe: Source
    metric: Metric = Metric()
    rungs: Annotated[tuple[Count, ...], Field(min_length=1)]
    keep: Share = 0.34
    cost: Quantity = "flops_per_token"
    split: Split = "everywhere"

    @model_validator(mode="after")
    def _check(self) -> "SearchFile":
        check_recipe(self.recipe, "steps", "patience")
        if list(self.rungs) != sorted(set(self.rungs)):
            invalid("rungs", "must increase", "begin with the fewest tokens")
        if empty := [path for path, values in self.space.items() if not values]:
            invalid(f"space.{empty[0]}", "has no values", "list values, as [A, B]")
        check_number_of_runs("space", *map(len, self.space.values()), most=MAX_SPACE)
        return self


def read_search(file: Path) -> SearchFile:
    """Read a search from YAML or JSON.

    Raises:
        SpecError: the file is invalid; the message names the file and its first invalid field.
    """
    data = read_mapping(file)
    if "parts" in data and "space" not in data:
        raise SpecError(str(file), "is an experiment, not a search", "run it with `archetype compare run`")
    with errors_at(str(file), SpecError):
        put_files_in_place(data, file.parent)
        return SearchFile.parse(data)


class Search:
    """Candidates of a search and the runs that they need.

    Raises:
        SpecError: no candidate satisfies the limits.
    """

    def __init__(self, file: SearchFile, data_folder: Path, store: Store) -> None:
        self.file, self.store = file, store
        self.data = prepare(file.data[0], data_folder, store.folder, file.split)
        changes = [dict(zip(file.space, values, strict=True)) for values in itertools.product(*file.space.values())]
        # a sample without replacement, which a larger `candidates` extends
        random.Random(file.seed).shuffle(changes)
        self.refused, self.reason = 0, ""
        self.changes: dict[str, dict[str, Any]] = {}
        self.costs: dict[str, float] = {}
        for change in changes:
            if len(self.changes) == (file.candidates or len(changes)):
                break
            if (cost := self._cost_within_limits(change)) is not None:
                name = json.dumps(change, sort_keys=True)
                self.changes[name], self.costs[name] = change, cost
        if not self.changes:
            raise SpecError(
                "limits", f"exclude all {len(changes)} candidates; the last: {self.reason}", "raise a limit"
            )

    def _cost_within_limits(self, change: Mapping[str, Any]) -> float | None:
        try:
            values = quantities(self._arm(change, self.file.rungs[0]))
        except ArchetypeError as error:
            self.refused, self.reason = self.refused + 1, str(error)
            return None
        for name, most in self.file.limits.items():
            if values[name] > most:
                self.refused, self.reason = self.refused + 1, f"{name} = {values[name]:,.0f} exceeds {most:,.0f}"
                return None
        return values[self.file.cost]

    def _arm(self, change: Mapping[str, Any], tokens: int) -> Arm:
        file = self.file
        (arm,) = build_arms(file.base, {"candidate": change}, file.recipe, self.data, file.metric, tokens, Match())
        return arm

    def _request(self, name: str, tokens: int, with_test: bool = False) -> RunRequest:
        arm = self._arm(self.changes[name], tokens)
        recipe = arm.recipe.replace(seed=self.file.seed)
        return RunRequest(recipe, self.data.sha256, (arm.metric,) if with_test else (), self.data.test, "cpu")

    def _scores(self, names: list[str], tokens: int) -> dict[str, float | None]:
        # None until a candidate's run is done
        results = {name: self.store.result(self._request(name, tokens)) for name in names}
        metric = self.file.metric
        return {name: None if result is None else result.validation_score(metric) for name, result in results.items()}

    def rungs(self) -> list[tuple[int, dict[str, float | None]]]:
        """Return (tokens, validation scores) for each rung that has begun."""
        names, rungs = list(self.changes), []
        for tokens in self.file.rungs:
            rungs.append((tokens, scores := self._scores(names, tokens)))
            known = {name: score for name, score in scores.items() if score is not None}
            # which candidates go on is only known once all have a score
            if len(known) < len(scores):
                break
            names = self._ranked(known)
            # at least one candidate goes on
            names = names[: max(1, round(len(names) * self.file.keep))]
        return rungs

    def _ranked(self, losses: Mapping[str, float]) -> list[str]:
        """Sort candidates by Pareto fronts in loss and cost, then by loss (NSGA-II, Deb 2002, section III A)."""
        ranked, left = list[str](), sorted(losses, key=lambda name: (losses[name], self.costs[name]))
        while left:
            # sorted by loss: a candidate is on the front if every better one costs more
            front = [
                name
                for index, name in enumerate(left)
                if all(self.costs[other] > self.costs[name] for other in left[:index])
            ]
            ranked += front
            left = [name for name in left if name not in front]
        return ranked

    def front(self) -> list[str]:
        """Return the Pareto front of the last rung: candidates that no other beats in both score and cost."""
        # without diverged candidates
        scores = {name: score for name, score in self.rungs()[-1][1].items() if score is not None and isfinite(score)}

        def beats(other: str, name: str) -> bool:
            return other != name and self.costs[other] <= self.costs[name] and scores[other] <= scores[name]

        return [name for name in scores if not any(beats(other, name) for other in scores)]

    def needed(self) -> list[RunRequest]:
        """Return the missing runs of the current rung, then the missing tests of the Pareto front; empty at the end."""
        tokens, scores = self.rungs()[-1]
        if missing := [self._request(name, tokens) for name, score in scores.items() if score is None]:
            return missing
        tests = [self._request(name, tokens, with_test=True) for name in self.front()]
        return [request for request in tests if self.store.result(request) is None]

    def run(self, engine: Engine, say: Callable[[str], None], progress: Progress) -> None:
        while requests := self.needed():
            keys = [self.store.add(request) for request in requests]
            say(f"{len(keys)} candidates, {self.rungs()[-1][0]:,} tokens each")
            engine.run(self.store, keys, progress)

    def _seconds(self) -> float:
        requests = [self._request(name, tokens) for tokens, values in self.rungs() for name in values]
        results = [self.store.result(request) for request in requests]
        return sum(float(result.about["seconds"]) for result in results if result is not None)

    @property
    def validation_name(self) -> str:
        return "validation accuracy" if self.file.metric.is_accuracy else "validation loss"

    def outcome(self) -> dict[str, Any]:
        """Return every candidate, best first, with cost and validation score (null if it diverged)."""
        last: dict[str, tuple[int, float]] = {}
        for tokens, scores in self.rungs():
            last |= {name: (tokens, score) for name, score in scores.items() if score is not None}
        # the score of an accuracy is its negative, so that lower is better
        front, sign = self.front(), -1 if self.file.metric.is_accuracy else 1
        best_first = sorted(last, key=lambda name: (-last[name][0], last[name][1]))
        rows: list[dict[str, Any]] = []
        for name in best_first:
            tokens, score = last[name]
            row = {
                "change": self.changes[name],
                "tokens": tokens,
                "test": None,
                "cost": self.costs[name],
                "validation": sign * score if isfinite(score) else None,
                "run": self._request(name, tokens).key,
                "is_on_front": name in front,
            }
            if name in front and (result := self.store.result(self._request(name, tokens, with_test=True))):
                row["test"] = result.values[self.file.metric.key]
            rows.append(row)
        return {
            "version": 1,
            "title": self.file.title,
            "hash": fingerprint(self.file),
            "code": CODE,
            "date": now(),
            "environment": environment(),
            "cost_name": self.file.cost,
            "refused": self.refused,
            "seconds": self._seconds(),
            "candidates": rows,
            "metric": self.file.metric.dump(full=True),
            "validation_name": self.validation_name,
        }
