"""The settings of a part of an experiment: what is matched, measured, tuned, expected and spent."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from archetype.spec.base import MAX_LENGTH, Finite, Length, Size, Spec, invalid

MAX_RUNS = 10_000  # that a part may ask for; the largest published ones of ours take some hundred
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


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
Effect = Annotated[Finite, BeforeValidator(_signed, json_schema_input_type=float | str)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Source = str | dict[str, Any]  # a name or a file, or the thing itself
Corpora = Annotated[
    tuple[Source, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str | dict) else value,
        json_schema_input_type=Source | tuple[Source, ...],
    ),
]


def is_text(source: Source) -> bool:
    """Whether a source of data is a text, and not examples that are drawn."""
    return isinstance(source, str) or source.get("kind") in ("corpus", None)


def check_number_of_runs(place: str, *factors: int, most: int = MAX_RUNS) -> None:
    """Refuse what multiplies to more runs than anybody makes, before a plan lists them."""
    if math.prod(factors) > most:
        invalid(place, f"are more than {most:,} runs together", "give fewer")


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

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share of right answers, which validation measures as such; of others it measures the loss."""
        return self.name == "test.accuracy"

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

    grid: dict[str, tuple[int | Finite | bool | str, ...]]
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
