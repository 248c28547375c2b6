"""The parts of an experiment: a check that needs no training, arms that are trained, or a scaling law."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag, model_validator

from archetype.errors import nearest
from archetype.spec.base import Size, Spec, cut, invalid
from archetype.spec.kinds import ByKind
from archetype.studies.decisions import Decision
from archetype.studies.settings import (
    Corpora,
    Count,
    Expectation,
    Match,
    Metric,
    Modes,
    Share,
    Source,
    Tune,
    check_number_of_runs,
)


def check_no_effect(expect: "Expectation") -> None:
    """Refuse, inside a validator, the expected effect of a part that has none."""
    if expect.effect:
        invalid("expect.effect", "is of trained parts", "leave it out")


def check_recipe(recipe: Source, *others: str) -> None:
    """Refuse, inside a validator, a recipe in place whose keys something else decides.

    Args:
        recipe: of a part.
        others: such keys beside the model, the data and the seed.
    """
    for key in ("spec", "data", "seed", *others):
        if isinstance(recipe, dict) and key in recipe:
            invalid(f"recipe.{key}", "is decided by other keys of the part", "leave it out")


class CheckPart(Spec):
    """A part that needs no training: an identity, arithmetic, a simulation, a measurement of models at random.

    Attributes:
        id: of the part, within its claim.
        type: what settles it.
        says: the part of the claim, in one sentence.
        check: the name of the check, such as rope.shift.
        expect: what was expected before.
    """

    always_dumped: ClassVar[tuple[str, ...]] = ("id", "type")
    id: str
    type: Literal["identity", "analytic", "simulation", "initialization", "scaling", "timing"]
    says: str
    check: str
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _check(self) -> "CheckPart":
        check_no_effect(self.expect)
        return self


class TrainedPart(Spec):
    """A part that is settled by training arms that differ in one thing, seed by seed.

    An arm is a mapping of changes: PATH of the model as `archetype set` takes it, recipe.PATH, data.PATH, metric.PATH,
    `spec` for another model altogether, and `seed_offset` for the same model with other seeds.

    Attributes:
        id: of the part, within its claim.
        type: trained.
        says: the part of the claim, in one sentence.
        base: the model that all arms change: a preset, a file, or a specification.
        arms: changes by the name of the arm; the first is the control.
        match: what all arms have in common.
        data: what is learned: corpora by name or file, or data as a recipe names them; the first decides.
        recipe: how, as a file or in place.
        tune: the trials before.
        seeds: how many pairs.
        metric: what is measured.
        decide: the rule.
        between: the control and the one arm that is compared with it (absent: every arm with the first).
        expect: what was expected before.
        modes: what is spent.
        limits: what the outcome does not say.
    """

    always_dumped: ClassVar[tuple[str, ...]] = ("id", "type")
    id: str
    type: Literal["trained"] = "trained"
    says: str
    base: Source
    arms: dict[str, dict[str, Any]]
    match: Match = Match()
    data: Corpora
    recipe: Source
    tune: Tune | None = None
    seeds: Size = 8
    metric: Metric = Metric()
    decide: Annotated[Decision, ByKind(Decision)]
    between: tuple[str, str] | None = None
    expect: Expectation = Expectation()
    modes: Modes
    limits: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "TrainedPart":
        if len(self.arms) < 2:
            invalid("arms", "there is one arm", "give a control and another, as NAME: {PATH: VALUE}")
        check_recipe(self.recipe, *(["steps"] if self.modes.full.tokens else []))
        free = self.match.free if isinstance(self.match.free, dict) else {}
        for place, names in (("between", self.between or ()), ("match.free", free)):
            for name in names:
                if name not in self.arms:
                    invalid(place, f"{cut(name)} is no arm", nearest(name, self.arms))
        if self.between is not None and self.between[0] == self.between[1]:
            invalid("between", f"{cut(self.between[0])} is named twice", "name the control and another arm")
        check_number_of_runs("seeds", len(self.arms), self.seeds)
        if self.tune:
            values = map(len, self.tune.grid.values())
            check_number_of_runs("tune.grid", len(self.arms), len(self.tune.seeds), *values)
        if self.tune and self.seeds > min(self.tune.seeds, default=2**31):
            invalid("tune.seeds", "are seeds of the comparison too", f"use numbers from {self.seeds} on")
        return self

    @property
    def compared(self) -> tuple[str, tuple[str, ...]]:
        """The control, and the arms that are tested against it: one where all arms together make one test."""
        if self.between is not None:
            return self.between[0], self.between[1:]
        control, *others = self.arms
        return control, tuple(others[:1] if self.decide.takes_all_arms else others)


class ScalingLawPart(Spec):
    """Loss = E + A / N^a + B / D^b, fitted over sizes and tokens; the largest run is predicted before it is made.

    Attributes:
        id: of the part.
        type: scaling_law.
        says: what is asked, in one sentence.
        base: the model.
        sizes: changes of it by the name of the size, smallest first; the last is held out of the fit.
        tokens: of the runs of each size.
        data: what is learned.
        recipe: how.
        tune: the trials of each size, with its fewest tokens.
        seeds: runs of each size and number of tokens.
        metric: what is measured.
        margin: the share of the measured loss within which the prediction must lie.
        quick: of the sizes and tokens, how many a quick run takes.
        expect: what was expected before.
    """

    always_dumped: ClassVar[tuple[str, ...]] = ("id", "type")
    id: str
    type: Literal["scaling_law"] = "scaling_law"
    says: str
    base: Source
    sizes: dict[str, dict[str, Any]]
    tokens: tuple[Count, ...]
    data: Corpora
    recipe: Source
    tune: Tune | None = None
    seeds: Size = 1
    metric: Metric = Metric(name="test.loss")
    margin: Share = 0.02
    quick: Size = 4
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _check(self) -> "ScalingLawPart":
        check_recipe(self.recipe, "steps", "patience")
        check_no_effect(self.expect)
        if len(self.data) != 1:
            invalid("data", "is not one corpus", "give the one that the law is fitted on")
        if self.tune and "extend" in self.tune.model_fields_set:
            invalid("tune.extend", "is of trained parts: the grid of a law stays as it is", "leave it out")
        if (len(self.sizes) - 1) * len(self.tokens) < 5:
            invalid("sizes", "there are fewer than 5 runs to fit 5 numbers to", "give more sizes or more tokens")
        values = map(len, self.tune.grid.values()) if self.tune else ()
        seeds = self.seeds + (len(self.tune.seeds) if self.tune else 0)
        check_number_of_runs("sizes", len(self.sizes), len(self.tokens), seeds, *values)
        return self


TYPES = {
    **dict.fromkeys(("identity", "analytic", "simulation", "initialization", "scaling", "timing"), CheckPart),
    "trained": TrainedPart,
    "scaling_law": ScalingLawPart,
}


def _tag(value: Any) -> str | None:
    if isinstance(value, Mapping):
        name = str(value.get("type"))
        return TYPES[name].__name__ if name in TYPES else None
    return type(value).__name__


AnyPart = Annotated[
    Annotated[CheckPart, Tag("CheckPart")]
    | Annotated[TrainedPart, Tag("TrainedPart")]
    | Annotated[ScalingLawPart, Tag("ScalingLawPart")],
    Discriminator(_tag),
]
