"""Architecture search on a budget: successive halving over changes of a model, within limits of the cost model.

Many candidates learn from few tokens, the better part of them from more (Jamieson 2016); a candidate is better where it
has the lower loss or the lower cost. Runs are those of all studies, so a search that stops goes on, and one with more
candidates takes over what is there.
"""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from archetype.data.held_out import Split
from archetype.errors import ArchetypeError, SpecError
from archetype.io.yaml import read_mapping
from archetype.machine.environment import environment, now
from archetype.spec.base import Size, Spec, fingerprint, invalid
from archetype.studies.arms import Arm, build_arms, quantities
from archetype.studies.corpora import prepare
from archetype.studies.experiment import put_files_in_place
from archetype.studies.parts import check_recipe
from archetype.studies.settings import Corpora, Count, Match, Metric, Seed, Share, Source, check_number_of_runs
from archetype.studies.store import CODE, RunRequest, Store
from archetype.studies.sweep import Engine, Progress

Quantity = Literal["parameters", "non_embedding", "active", "flops_per_token", "state_bytes"]


MAX_SPACE = 100_000  # candidates that are drawn from


class SearchFile(Spec):
    """A space of changes, and how much may be spent on it.

    Attributes:
        version: of the file format.
        title: in a few words.
        base: the model that is changed.
        space: values by path, as an arm of an experiment has them; a candidate takes one value of each.
        candidates: how many are drawn (absent: all there are).
        seed: of what is drawn, and of the runs.
        limits: the most of a quantity that a candidate may have.
        data: what is learned; the first counts.
        recipe: how.
        metric: what is measured.
        rungs: tokens of the runs, fewest first.
        keep: share of the candidates that goes on to the next rung.
        cost: the quantity that is set against the metric.
        split: the parts of a text that are held out.
    """

    version: Literal[1] = 1
    title: str
    base: Source
    space: dict[str, tuple[Any, ...]]
    candidates: Size | None = None
    seed: Seed = 0
    limits: dict[Quantity, Annotated[float, Field(gt=0)]] = {}  # noqa: RUF012  # pydantic copies it
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
            invalid("rungs", "do not rise", "begin with the fewest tokens")
        if empty := [path for path, values in self.space.items() if not values]:
            invalid(f"space.{empty[0]}", "has no values", "give some, as [A, B]")
        check_number_of_runs("space", *map(len, self.space.values()), most=MAX_SPACE)
        return self


def read_search(file: Path) -> SearchFile:
    """The search in a YAML or JSON file.

    Raises:
        SpecError: names the file and the first field that is wrong.
    """
    data = read_mapping(file)
    if "parts" in data and "space" not in data:
        raise SpecError(str(file), "is an experiment, not a search", "run it with `archetype compare run`")
    try:
        put_files_in_place(data, file.parent)
        return SearchFile.parse(data)
    except SpecError as error:
        raise error.at(str(file)) from None


class Search:
    """The candidates of a search, and the runs that they need.

    Args:
        file: the search.
        data_folder: of the corpora.
        store: of the runs.

    Raises:
        SpecError: no candidate is possible within the limits.
    """

    def __init__(self, file: SearchFile, data_folder: Path, store: Store) -> None:
        self.file, self.store = file, store
        self.data = prepare(file.data[0], data_folder, store.folder, file.split)
        changes = [dict(zip(file.space, values, strict=True)) for values in itertools.product(*file.space.values())]
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
            raise SpecError("limits", f"none of {len(changes)} candidates is possible: {self.reason}", "allow more")

    def _cost_within_limits(self, change: Mapping[str, Any]) -> float | None:
        """The cost of the model that a change makes; None where it makes none, or one that breaks a limit."""
        try:
            values = quantities(self._arm(change, self.file.rungs[0]))
        except ArchetypeError as error:
            self.refused, self.reason = self.refused + 1, str(error)
            return None
        for name, most in self.file.limits.items():
            if values[name] > most:
                self.refused, self.reason = self.refused + 1, f"{name} are {values[name]:,.0f}, more than {most:,.0f}"
                return None
        return values[self.file.cost]

    def _arm(self, change: Mapping[str, Any], tokens: int) -> Arm:
        file = self.file
        (arm,) = build_arms(file.base, {"candidate": change}, file.recipe, self.data, file.metric, tokens, Match())
        return arm

    def _request(self, name: str, tokens: int) -> RunRequest:
        arm = self._arm(self.changes[name], tokens)
        recipe = arm.recipe.replace(seed=self.file.seed)
        return RunRequest(recipe, self.data.sha256, (arm.metric,), self.data.test, "cpu")

    def _values(self, names: list[str], tokens: int) -> dict[str, float | None]:
        """The metric of each candidate after so many tokens; None where it is not known yet."""
        values: dict[str, float | None] = {}
        for name in names:
            result = self.store.result(self._request(name, tokens))
            values[name] = None if result is None else result.values[fingerprint(self.file.metric)]
        return values

    def rungs(self) -> list[tuple[int, dict[str, float | None]]]:
        """(tokens, values) of each rung that has begun."""
        names, rungs = list(self.changes), []
        sign = 1 if self.file.metric.better == "lower" else -1
        for tokens in self.file.rungs:
            rungs.append((tokens, values := self._values(names, tokens)))
            if any(value is None for value in values.values()):
                break
            names = self._ranked({name: sign * (value or 0.0) for name, value in values.items()})
            names = names[: max(1, round(len(names) * self.file.keep))]
        return rungs

    def _ranked(self, losses: Mapping[str, float]) -> list[str]:
        """Candidates by fronts, that of those which no other beats in loss and cost first; in a front by loss.

        As Deb 2002 sorts them (NSGA-II, section III A).
        """
        ranked, left = list[str](), sorted(losses, key=lambda name: (losses[name], self.costs[name]))
        while left:
            front = [
                name for number, name in enumerate(left)
                if all(self.costs[other] > self.costs[name] for other in left[:number])
            ]  # fmt: skip
            ranked += front
            left = [name for name in left if name not in front]
        return ranked

    def needed(self) -> list[RunRequest]:
        """The runs of the present rung that are not there; none at the end."""
        tokens, values = self.rungs()[-1]
        return [self._request(name, tokens) for name, value in values.items() if value is None]

    def run(self, engine: Engine, say: Callable[[str], None], progress: Progress) -> None:
        """Climb rung by rung."""
        while requests := self.needed():
            keys = [self.store.add(request) for request in requests]
            say(f"{len(keys)} candidates, {self.rungs()[-1][0]:,} tokens each")
            engine.run(self.store, keys, progress)

    def _seconds(self) -> float:
        """The time of all runs."""
        requests = [self._request(name, tokens) for tokens, values in self.rungs() for name in values]
        results = [self.store.result(request) for request in requests]
        return sum(float(result.about["seconds"]) for result in results if result is not None)

    def outcome(self) -> dict[str, Any]:
        """Every candidate with its cost and how far it came; those that no other beats in both are on the front."""
        last: dict[str, tuple[int, float]] = {}
        for tokens, values in self.rungs():
            last |= {name: (tokens, value) for name, value in values.items() if value is not None}
        sign = 1 if self.file.metric.better == "lower" else -1
        rows: list[dict[str, Any]] = [
            {"change": self.changes[name], "tokens": tokens, "loss": value,
             "cost": self.costs[name], "run": self._request(name, tokens).key}
            for name, (tokens, value) in last.items()
        ]  # fmt: skip
        most = max(row["tokens"] for row in rows)
        for row in rows:
            others = [other for other in rows if other["tokens"] == most and other is not row]
            row["is_on_front"] = row["tokens"] == most and not any(
                other["cost"] <= row["cost"] and sign * other["loss"] <= sign * row["loss"] for other in others
            )
        return {
            "version": 1, "title": self.file.title, "hash": fingerprint(self.file), "code": CODE,
            "date": now(), "environment": environment(), "cost_name": self.file.cost, "refused": self.refused,
            "seconds": self._seconds(), "candidates": rows, "metric": self.file.metric.dump(full=True),
        }  # fmt: skip
