"""Parts of an experiment: a check without training, trained arms, or a scaling law."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag, model_validator

from archetype.errors import nearest
from archetype.spec.base import Size, Spec
from archetype.spec.errors import cut, invalid
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

OWN = {"spec", "from"}  # fields that give an arm a separate model
ACCURACIES = ("test.accuracy", "test.recall", "test.task")


def check_no_effect(expect: "Expectation") -> None:
    if expect.effect:
        invalid("expect.effect", "applies to trained parts only", "remove it")


def check_recipe(recipe: Source, *others: str) -> None:
    for key in ("spec", "data", "seed", *others):
        if isinstance(recipe, dict) and key in recipe:
            invalid(f"recipe.{key}", "is set by other keys of the part", "remove it")


class CheckPart(Spec):
    """Part without training: an identity, arithmetic, a simulation, a timing, or a measurement of untrained models.

    Attributes:
        id: unique within the claim.
        type: kind of check.
        says: what this part claims, in one sentence.
        check: name of the check, such as rope.shift.
        expect: prediction before the run.
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
    """Part decided by training runs of arms that differ in one thing, paired by seed.

    An arm is a mapping of changes: PATH of the model as in `archetype set`, recipe.PATH, data.PATH, metric.PATH,
    `spec` for another model, and `seed_offset` for the same model with other seeds. With `from: FOLDER` it starts from
    the weights of this model, which changes of the model transplant; with `as_is: true` it is evaluated untrained.

    Attributes:
        id: unique within the claim.
        type: trained.
        says: what this part claims, in one sentence.
        base: model that all arms modify: a preset, a file, or a specification (absent: each arm names its own).
        arms: changes to the base model for each arm name; the first arm is the control.
        match: quantities that must be equal in all arms.
        data: corpora by name or file, or `data` sections of a recipe; the first one decides.
        recipe: training recipe, as a file or inline.
        tune: tuning trials before the comparison.
        seeds: number of seeds, and therefore of pairs.
        metric: what is measured.
        retained: additional accuracies for retention, relative to a control that starts from weights; the retained loss
            is always reported.
        decide: decision rule.
        between: the control and the one arm compared with it (absent: every arm is compared with the first).
        expect: prediction before the run.
        modes: budget of each mode.
        limits: limits of the outcome's validity.
    """

    always_dumped: ClassVar[tuple[str, ...]] = ("id", "type")
    id: str
    type: Literal["trained"] = "trained"
    says: str
    base: Source | None = None
    arms: dict[str, dict[str, Any]]
    match: Match = Match()
    data: Corpora
    recipe: Source
    tune: Tune | None = None
    seeds: Size = 8
    metric: Metric = Metric()
    retained: tuple[Metric, ...] = ()
    decide: Annotated[Decision, ByKind(Decision)]
    between: tuple[str, str] | None = None
    expect: Expectation = Expectation()
    modes: Modes
    limits: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "TrainedPart":
        if len(self.arms) < 2:
            invalid("arms", "there is only one arm", "add a second arm, as NAME: {PATH: VALUE}")
        if self.base is None and (name := next((a for a, of in self.arms.items() if not of.keys() & OWN), None)):
            invalid("base", f"is missing, and the arm {cut(name)} has no model of its own", "name the model")
        check_recipe(self.recipe, *(["steps"] if self.modes.full.tokens else []))
        free = self.match.free if isinstance(self.match.free, dict) else {}
        for field, names in (("between", self.between or ()), ("match.free", free)):
            for name in names:
                if name not in self.arms:
                    invalid(field, f"{cut(name)} is not an arm", nearest(name, self.arms))
        if self.between is not None and self.between[0] == self.between[1]:
            invalid("between", f"{cut(self.between[0])} is named twice", "name the control and another arm")
        if self.retained and "from" not in self.arms[self.compared[0]]:
            invalid("retained", "needs a control with weights", "add from: FOLDER to the control, or remove it")
        if wrong := next((metric.name for metric in self.retained if metric.name not in ACCURACIES), None):
            invalid("retained", f"{wrong} is not an accuracy", f"use {', '.join(ACCURACIES)}")
        if any("from" in change for change in self.arms.values()) and any(
            mode is not None and (mode.sizes or mode.base is not None)
            for mode in (self.modes.quick, self.modes.full, self.modes.extended, self.modes.gpu)
        ):
            invalid("modes", "an arm that starts from weights has one size", "remove sizes and base")
        check_number_of_runs("seeds", len(self.arms), self.seeds)
        if self.tune:
            values = map(len, self.tune.grid.values())
            check_number_of_runs("tune.grid", len(self.arms), len(self.tune.seeds), *values)
        # trials on a seed of the comparison would tune the arms on the runs that decide
        if self.tune and self.seeds > min(self.tune.seeds, default=2**31):
            invalid("tune.seeds", "are also seeds of the comparison", f"use numbers from {self.seeds} on")
        return self

    @property
    def compared(self) -> tuple[str, tuple[str, ...]]:
        """Control and the arms tested against it. If one test covers all arms, only the first tested arm is listed."""
        if self.between is not None:
            return self.between[0], self.between[1:]
        control, *others = self.arms
        return control, tuple(others[:1] if self.decide.takes_all_arms else others)


class ScalingLawPart(Spec):
    """Scaling law E + A / N^a + B / D^b, fitted to small runs. It predicts the largest runs before they start.

    Attributes:
        id: unique within the experiment.
        type: scaling_law.
        says: the question, in one sentence.
        base: the model.
        sizes: changes to the model for each size name, smallest first; the last size is left out of the fit.
        tokens: numbers of training tokens, for each of which every size is trained.
        data: training data.
        recipe: training recipe.
        tune: tuning trials of each size, with the fewest tokens.
        seeds: runs per size and number of tokens.
        metric: what is measured.
        margin: largest relative error of a correct prediction.
        quick: number of sizes, and of token counts, in quick mode.
        expect: prediction before the run.
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
            invalid("data", "must be a single corpus", "keep the corpus that the law is fitted on")
        if self.tune and "extend" in self.tune.model_fields_set:
            invalid("tune.extend", "applies to trained parts only; the grid of a law is not extended", "remove it")
        if (len(self.sizes) - 1) * len(self.tokens) < 5:
            invalid("sizes", "a law with 5 coefficients needs at least 5 runs", "add sizes or tokens")
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
        # an unknown type has no tag; `Experiment._check_types` has refused it with a better message
        name = str(value.get("type"))
        return TYPES[name].__name__ if name in TYPES else None
    return type(value).__name__


AnyPart = Annotated[
    Annotated[CheckPart, Tag("CheckPart")]
    | Annotated[TrainedPart, Tag("TrainedPart")]
    | Annotated[ScalingLawPart, Tag("ScalingLawPart")],
    Discriminator(_tag),
]
