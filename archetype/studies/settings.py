"""Settings of an experiment part: matching, metric, tuning, expectation and budgets."""

import hashlib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from archetype.spec.base import MAX_LENGTH, Finite, Length, Size, Spec, fingerprint
from archetype.spec.errors import invalid

MAX_RUNS = 10_000  # limit per part; our largest published parts need a few hundred
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


def _read_count(value: Any) -> Any:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])", value)):
        return round(min(float(match[1]) * SUFFIXES[match[2]], MAX_LENGTH + 1))  # 1.2M -> 1200000
    return value


def _share(value: Any) -> Any:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", value)):
        return float(match[1]) / 100  # 0.5% -> 0.005
    return value


def _signed(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("-"):
        return -_share(value[1:])
    return _share(value)


Count = Annotated[Length, BeforeValidator(_read_count, json_schema_input_type=Length | str)]
Share = Annotated[float, Field(gt=0, le=1), BeforeValidator(_share, json_schema_input_type=float | str)]
Effect = Annotated[Finite, BeforeValidator(_signed, json_schema_input_type=float | str)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Source = str | dict[str, Any]  # a name, a file, or the contents
Corpora = Annotated[
    tuple[Source, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str | dict) else value,
        json_schema_input_type=Source | tuple[Source, ...],
    ),
]


def is_text(source: Source) -> bool:
    return isinstance(source, str) or source.get("kind") in ("corpus", None)


def check_number_of_runs(field: str, *factors: int, most: int = MAX_RUNS) -> None:
    """Refuse settings that give too many runs, before a plan lists the runs."""
    if math.prod(factors) > most:
        invalid(field, f"the plan would have more than {most:,} runs", "reduce the number of runs")


class Match(Spec):
    """Quantities that must match in all arms. Data order, batch size, context, tokenizer and test data always match.

    Attributes:
        tokens: training tokens of each arm.
        params: largest relative difference in non-embedding parameters.
        flops: largest relative difference in FLOPs per token.
        state: largest relative difference in bytes of state.
        free: field that is changed to match the control: one field for all arms, or {arm: field}.
        solve: quantity that changing `free` must match.
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
            invalid("solve", "has no effect without free", "set free to the size to solve for, or remove it")
        return self


class Metric(Spec):
    """Metric measured after a run's last step, on unseen text or examples.

    Attributes:
        name: name of the metric; recall is the share of values found again after their keys are repeated at the end of
            a text of `length` random tokens, and task is the accuracy of an lm-eval task.
        better: which direction is better.
        length: tokens of a window, or of a text for recall (absent: the model's context).
        positions: [first, end): positions of each window that are scored (absent: the second half).
        skip: number of unscored tokens at the start of the text, so that metrics with other positions score the same
            tokens.
        data: fields of synthetic data that differ between test and training examples.
        minus: fields that define a second metric, which is subtracted from this metric.
        task: name or YAML file of an lm-eval task, for test.task.
        limit: number of its questions (absent: all).
    """

    name: Literal[
        "test.bits_per_byte", "test.loss", "test.accuracy", "test.bits_per_parameter", "test.recall", "test.task"
    ] = "test.bits_per_byte"
    better: Literal["lower", "higher"] = "lower"
    length: Size | None = None
    positions: tuple[Annotated[int, Field(ge=0)], Size] | None = None
    skip: Annotated[int, Field(ge=0)] = 0
    data: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it
    minus: dict[str, Any] | None = None
    task: str | None = None
    limit: Size | None = None

    @property
    def key(self) -> str:
        """Hash of all fields. `fingerprint` leaves out the name, which is that of a model elsewhere."""
        about = fingerprint(self)
        is_usual = self.name == type(self).model_fields["name"].default
        return about if is_usual else hashlib.sha256(f"{about} {self.name}".encode()).hexdigest()[:16]

    @property
    def is_accuracy(self) -> bool:
        # validation measures accuracy too; for other metrics it measures the loss
        return self.name == "test.accuracy"

    @model_validator(mode="after")
    def _check(self) -> "Metric":
        if self.positions is not None and self.positions[0] >= self.positions[1]:
            invalid("positions", f"{list(self.positions)} is empty", "write [first, one after the last]")
        if (self.name == "test.task") != (self.task is not None):
            remedy = "name an lm-eval task" if self.task is None else "use the name test.task, or remove it"
            invalid("task", "belongs to test.task", remedy)
        if self.limit is not None and self.task is None:
            invalid("limit", "has no effect without a task", "remove it")
        return self


class Tune(Spec):
    """Tuning trials of every arm at full length, with separate seeds. Validation data decide which trial is best.

    Attributes:
        grid: values to try for each recipe field, such as optimizer.learning_rate; spec.PATH is a field of the model.
        seeds: seeds of the trials.
        extend: how often the grid is extended, for all arms, if a best value is at its edge.
    """

    grid: dict[str, tuple[int | Finite | bool | str, ...]]
    seeds: tuple[Seed, ...] = (900,)
    extend: Annotated[int, Field(strict=True, ge=0, le=4)] = 2


class Expectation(Spec):
    """Prediction before any run, shown next to the outcome.

    Attributes:
        verdict: expected verdict of the part.
        effect: expected range of a trained part's effect, relative to the control.
        source: source of the prediction, such as a paper.
    """

    verdict: Literal["shown", "no difference shown", "not shown", "open"] = "open"
    effect: tuple[Effect, ...] = ()
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if self.effect and (len(self.effect) != 2 or self.effect[0] > self.effect[1]):
            invalid("effect", "must be two shares, the lower first", "write [-3%, -1%]")
        return self


class Mode(Spec):
    """Budget of a part.

    Attributes:
        tokens: training tokens of each run (absent: as in full mode).
        seeds: number of pairs (absent: the part's).
        tune: none, or other tuning trials (absent: the part's).
        base: base model of another size (absent: the part's).
        data: corpora of this mode (absent: the part's first corpus).
        sizes: base models of other sizes, on which the tuned arms run with a few seeds.
        device: cpu or cuda (absent: cuda in gpu mode, else cpu).
    """

    tokens: Count | None = None
    seeds: Size | None = None
    tune: Literal["none"] | Tune | None = None
    base: Source | None = None
    data: Corpora | None = None
    sizes: tuple[Source, ...] = ()
    device: Literal["cpu", "cuda"] | None = None


class Modes(Spec):
    """Budget of a part in each mode.

    Attributes:
        quick: takes at most a minute and shows a direction, but gives no verdict.
        full: budget that decides the verdict.
        extended: full mode with additional corpora and sizes.
        gpu: budget of runs on a GPU.
    """

    quick: Mode = Mode()
    full: Mode
    extended: Mode | None = None
    gpu: Mode | None = None
