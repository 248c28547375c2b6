"""An experiment file: a claim in parts, each with its arms, its measurement, and the rule that decides it."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from archetype.errors import SpecError, nearest
from archetype.io.yaml import read_mapping
from archetype.spec.base import MAX_LENGTH, Flag, Length, Size, Spec, cut, fingerprint, invalid
from archetype.spec.kinds import ByKind
from archetype.spec.serialize import document_schema
from archetype.studies.decisions import Decision

MODES = ("quick", "full", "extended", "gpu")
MAX_RUNS = 10_000  # that a part may ask for; the largest published ones of ours take some hundred
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")


def _read_count(value: Any) -> Any:
    """1.2M as 1200000."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])", value)):
        return round(min(float(match[1]) * SUFFIXES[match[2]], MAX_LENGTH + 1))
    return value


def _share(value: Any) -> Any:
    """0.5% as 0.005."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", value)):
        return float(match[1]) / 100
    return value


def _signed(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("-"):
        return -_share(value[1:])
    return _share(value)


Count = Annotated[Length, BeforeValidator(_read_count, json_schema_input_type=Length | str)]
Share = Annotated[float, Field(gt=0, le=1), BeforeValidator(_share, json_schema_input_type=float | str)]
Effect = Annotated[float, BeforeValidator(_signed, json_schema_input_type=float | str)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Source = str | dict[str, Any]  # a name or a file, or the thing itself
Corpora = Annotated[
    tuple[Source, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str | dict) else value,
        json_schema_input_type=Source | tuple[Source, ...],
    ),
]


def check_number_of_runs(place: str, *factors: int, most: int = MAX_RUNS) -> None:
    """Refuse what multiplies to more runs than anybody makes, before a plan lists them."""
    if math.prod(factors) > most:
        invalid(place, f"are more than {most:,} runs together", "give fewer")


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


class Match(Spec):
    """Quantities that all arms share beside tokens, data order, batch, context, tokenizer and evaluation set.

    Attributes:
        tokens: that each arm learns from.
        params: the most by which parameters outside of embeddings may differ.
        flops: the most by which FLOPs of a token may differ.
        state: the most by which bytes of the state may differ.
        free: the size that is solved for, in every arm but the control, or by the name of the arm.
        solve: what it is solved for.
    """

    tokens: Literal["equal"] = "equal"
    params: Share | None = None
    flops: Share | None = None
    state: Share | None = None
    free: str | dict[str, str] | None = None
    solve: Literal["parameters", "active", "flops", "state"] = "parameters"

    @model_validator(mode="after")
    def _check(self) -> "Match":
        if "solve" in self.model_fields_set and self.free is None:
            invalid("solve", "has no effect without free", "name a size that is solved for, or leave it out")
        return self


class Metric(Spec):
    """The measurement of a run after its last step, on text or examples that it has not seen.

    Attributes:
        name: of the measurement.
        better: which way is better.
        length: tokens of a window that is measured (absent: the model's context).
        positions: the first position of each window that counts, and the one after the last (absent: the latter half).
        skip: tokens at the beginning of the text that never count, so that measurements of other positions take the
            same tokens.
        data: fields of synthetic data in which the examples measured differ from those learned.
        minus: fields of this metric with other values, whose measurement is taken off.
    """

    name: Literal["test.bits_per_byte", "test.loss", "test.accuracy", "test.bits_per_parameter"] = "test.bits_per_byte"
    better: Literal["lower", "higher"] = "lower"
    length: Size | None = None
    positions: tuple[Annotated[int, Field(ge=0)], Size] | None = None
    skip: Annotated[int, Field(ge=0)] = 0
    data: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it
    minus: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Metric":
        if self.positions is not None and self.positions[0] >= self.positions[1]:
            invalid("positions", f"{list(self.positions)} names no position", "write [first, one after the last]")
        return self


class Tune(Spec):
    """The same trials for every arm, at full length, with seeds of their own; chosen on validation.

    Attributes:
        grid: values by the path of a recipe's field, such as optimizer.learning_rate; spec.PATH is the model's.
        seeds: of the trials.
        extend: how often a grid whose best value is at its edge is made longer, for all arms.
    """

    grid: dict[str, tuple[int | float | bool | str, ...]]
    seeds: tuple[Seed, ...] = (900,)
    extend: Annotated[int, Field(strict=True, ge=0, le=4)] = 2


class Expectation(Spec):
    """The prediction before any run, to stand beside the outcome.

    Attributes:
        verdict: of the part.
        effect: between which shares of the control the effect of a trained part is expected.
        source: where that comes from.
    """

    verdict: Literal["shown", "no difference shown", "not shown", "open"] = "open"
    effect: tuple[Effect, ...] = ()
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if self.effect and (len(self.effect) != 2 or self.effect[0] > self.effect[1]):
            invalid("effect", "is not two shares, the lower first", "write it as [-3%, -1%]")
        return self


class Mode(Spec):
    """How much is spent.

    Attributes:
        tokens: of each run (absent: those of full).
        seeds: how many (absent: the part's).
        tune: none, or other trials (absent: the part's).
        base: another size of model (absent: the part's).
        data: other data (absent: the part's first).
        sizes: further models on which the tuned arms run with a few seeds.
        device: cpu or cuda (absent: cuda in gpu, else cpu).
    """

    tokens: Count | None = None
    seeds: Size | None = None
    tune: Literal["none"] | Tune | None = None
    base: Source | None = None
    data: Corpora | None = None
    sizes: tuple[Source, ...] = ()
    device: Literal["cpu", "cuda"] | None = None


class Modes(Spec):
    """The budgets of each way to run a part.

    Attributes:
        quick: seconds or a minute: says a direction, never a verdict.
        full: what the verdict rests on.
        extended: full, with the other corpora and sizes.
        gpu: on a GPU.
    """

    quick: Mode = Mode()
    full: Mode
    extended: Mode | None = None
    gpu: Mode | None = None


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


class Experiment(Spec):
    """A claim, or a question of one's own, in parts that are decided one by one.

    Attributes:
        version: of the file format.
        claim: its number, of the 25.
        title: in a few words.
        sentence: the claim as the documents make it, in our own words.
        headline: what must be said of it whatever the verdict.
        parts: one outcome each.
        is_calibration: whether its verdicts are what others need before theirs count.
    """

    version: Literal[1] = 1
    claim: Annotated[int, Field(strict=True, ge=1)] | None = None
    title: str
    sentence: str = ""
    headline: str = ""
    parts: Annotated[tuple[AnyPart, ...], Field(min_length=1)]
    is_calibration: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _check_types(cls, data: Any) -> Any:
        parts = data.get("parts") if isinstance(data, dict) else None
        for number, part in enumerate(parts if isinstance(parts, list | tuple) else ()):
            if isinstance(part, dict) and str(part.get("type")) not in TYPES:
                kind = part.get("type")
                cause = "is missing" if kind is None else f"there is no type {cut(kind)} of part"
                invalid(f"parts[{number}].type", cause, nearest(str(kind), TYPES))
        return data

    @model_validator(mode="after")
    def _check_ids(self) -> "Experiment":
        ids = [part.id for part in self.parts]
        for number, name in enumerate(ids):
            if not NAME.fullmatch(name):
                invalid(f"parts[{number}].id", f"{cut(name)} is no id", "use small letters, digits, - and _")
            if name in ids[:number]:
                invalid(f"parts[{number}].id", f"{name} is there twice", "give each part an id of its own")
        return self

    def has(self, mode: str) -> bool:
        """Whether a mode is any different from full, in one part at least."""
        trained = [part for part in self.parts if isinstance(part, TrainedPart)]
        return (
            mode in ("quick", "full")
            or any(getattr(part.modes, mode) is not None for part in trained)
            or (mode == "extended" and any(len(part.data) > 1 for part in trained))
            or (mode == "gpu" and any(isinstance(part, ScalingLawPart) for part in self.parts))
        )

    @property
    def hash(self) -> str:
        """A hash of all that was fixed beforehand, with the models and recipes that the file names."""
        return fingerprint(self)


def json_schema() -> dict[str, Any]:
    """A JSON Schema of experiment files, for editors."""
    return document_schema("experiment", Experiment.model_json_schema())


def read_experiment(file: Path) -> Experiment:
    """The experiment in a YAML or JSON file, with the specifications and recipes that lie beside it put in place.

    Raises:
        SpecError: names the file, the first field that is wrong, why, and what would be right.
    """
    data = read_mapping(file)
    if "space" in data and "parts" not in data:
        raise SpecError(str(file), "is a search, not an experiment", "run it with `archetype compare search`")
    try:
        for part in parts if isinstance(parts := data.get("parts"), list) else ():
            if isinstance(part, dict):
                put_files_in_place(part, file.parent)
        return Experiment.parse(data)
    except SpecError as error:
        raise error.at(str(file)) from None


def put_files_in_place(part: dict[str, Any], folder: Path) -> None:
    """Replace names of files, which stand relative to the experiment's own, by what they hold."""
    groups = [values for values in (part.get("modes"), part.get("arms")) if isinstance(values, dict)]
    for place in [part, *(value for group in groups for value in group.values() if isinstance(value, dict))]:
        for key in ("base", "recipe", "spec"):
            if key in place:
                place[key] = _in_place(place[key], folder)
        if isinstance(sizes := place.get("sizes"), list):
            place["sizes"] = [_in_place(name, folder) for name in sizes]


def _in_place(name: Any, folder: Path) -> Any:
    """What a file of this name holds; the name itself where there is none."""
    with suppress(OSError, ValueError):  # a text that is too long for a name, or holds a NUL
        if isinstance(name, str) and (folder / name).is_file():
            return read_mapping(folder / name)
    return name
