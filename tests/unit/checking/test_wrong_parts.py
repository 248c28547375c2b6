"""Parts that are wrong in one way each: of the invariants of their role exactly one fails, and says what was seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.checking import passes
from archetype.checking.examples import Example
from archetype.checking.passes import compiled_is_eager
from archetype.checking.run import Invariant, Report, check_example, check_kind
from archetype.checking.subject import Inapplicable, Subject, Violated
from archetype.cost.formula import Counts, Formula, constant
from archetype.cost.registry import Complexity, MixerCost, NormCost
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.spec.errors import invalid
from archetype.spec.kinds import Part
from tests.helpers import registered


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    with registered.registries_as_before():
        yield


def failures(role: type[Part], kind: type[Part], **parts: Any) -> dict[str, str]:
    """The rows that fail, with what was seen."""
    archetype.register(kind, **parts)  # type: ignore[type-var]
    report: Report = check_kind(role, kind, without=(compiled_is_eager,))
    return {row.invariant: row.finding for row in report.rows if row.result == "fails"}


@dataclass
class SumState(LayerState):
    """The sum of what was read."""

    total: Tensor  # (B, D)


class Sum(spec.Mixer):
    """A projection of the sum of all vectors so far: the smallest mixer that is right."""

    kind: Literal["sum"] = "sum"

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "a sum reads from left to right", "use it in a decoder")


class SumModule(nn.Module):
    """Right; each mistake below is one method of another class."""

    def __init__(self, mixer: Sum, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        self.o = nn.Linear(d_model, d_model, bias=False)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> SumState:
        return SumState(torch.zeros(batch, self.o.in_features, dtype=dtype, device=device))

    def forward(self, x: Tensor, context: ForwardContext, cache: SumState | None = None) -> Tensor:
        state = self.new_state(x.shape[0], 0, x.dtype, x.device) if cache is None else cache
        sums = state.total[:, None] + self.summed(self.masked(x, context))
        state.total = self.last(x, sums, cache)
        return self.o(self.mixed(sums) / 8)

    def masked(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x if context.valid is None else x * context.valid[..., None]

    def summed(self, x: Tensor) -> Tensor:
        return x.cumsum(1)

    def last(self, x: Tensor, sums: Tensor, cache: SumState | None) -> Tensor:
        return sums[:, -1]

    def mixed(self, sums: Tensor) -> Tensor:
        return sums


class LooksAhead(SumModule):
    def summed(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + 0.01 * x.roll(-1, 1)


class Forgets(SumModule):
    def last(self, x: Tensor, sums: Tensor, cache: SumState | None) -> Tensor:
        return x[:, -1]


class ReadsPadding(SumModule):
    def masked(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x


class SeesOtherRows(SumModule):
    def mixed(self, sums: Tensor) -> Tensor:
        return sums + 0.01 * sums.mean(0)


class SumCost(MixerCost):
    """Right."""

    part: Sum
    complexity = Complexity("O(T D)", "O(D)", "O(D)")
    size = 1  # of the state, in widths of the model

    def parameters(self) -> Counts:
        return {"o": self.d * self.d}

    def flops(self, work: Any) -> Counts:
        return {"o": 2 * work.tokens * self.d * self.d}

    def state(self, length: int) -> int:
        return self.size * self.d.value

    def saved_activations(self, work: Any) -> int:
        return int(work.input_bytes(self.d.value))


class CountsABias(SumCost):
    def parameters(self) -> Counts:
        return {"o": self.d * self.d + self.d}


class CountsTwoStates(SumCost):
    size = 2


def test_a_right_mixer_fails_nothing() -> None:
    assert failures(spec.Mixer, Sum, module=SumModule, cost=SumCost) == {}


@pytest.mark.parametrize(
    ("module", "cost", "row", "finding"),
    [
        (LooksAhead, SumCost, "later tokens change nothing", "tokens from position 1 on change position 0 by "),
        (Forgets, SumCost, "in chunks as whole", "read in a chunk, differ by "),
        (ReadsPadding, SumCost, "padding leaves states alone", "next to a longer sequence, outputs differ by "),
        (SeesOtherRows, SumCost, "a batch as single rows", "sequence 0 of 4 differs from the same alone by "),
        (
            SumModule,
            CountsABias,
            "parameters as counted",
            "blocks.0.mixer: its cost formula counts 600 parameters, but its module has 576",
        ),
        (SumModule, CountsTwoStates, "state bytes as counted", "counts 768 bytes, but the state has 384"),
    ],
)
def test_a_wrong_mixer_fails_its_row(module: Any, cost: Any, row: str, finding: str) -> None:
    seen = failures(spec.Mixer, Sum, module=module, cost=cost)
    assert list(seen) == [row] and finding in seen[row], seen


class Unused(spec.Norm):
    kind: Literal["unused"] = "unused"


class UnusedModule(nn.Module):
    """Has a bias that it forgets to add."""

    def __init__(self, norm: Unused, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(features)), nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight)


def test_a_norm_with_an_unused_parameter_fails_its_row() -> None:
    seen = failures(spec.Norm, Unused, module=UnusedModule)
    assert list(seen) == ["every parameter gets a gradient"]
    assert seen["every parameter gets a gradient"].startswith(
        "defaults: blocks.0.feedforward_norm.bias gets no gradient"
    )


class UnbuiltModule(UnusedModule):
    def __init__(self, norm: Unused, features: int) -> None:
        raise RuntimeError(f"no room for\n{features} features")


class NoCost(NormCost):
    def parameters(self) -> Formula:
        return constant(0)

    def saved_activations(self, vectors: int) -> int:
        return 0


def test_what_cannot_be_built_fails_once_in_one_line() -> None:
    seen = failures(spec.Norm, Unused, module=UnbuiltModule, cost=NoCost)
    assert seen == {"a module is built": "defaults: RuntimeError: no room for 24 features (and 1 of 1 others)"}


def test_a_model_without_blocks_is_not_compiled() -> None:
    with pytest.raises(Inapplicable, match=r"^has no blocks$"):
        compiled_is_eager(Subject(archetype.load_spec("bigram-tiny")))
    compiled: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "compile_blocks", lambda model: compiled.append(len(model.blocks)))
        compiled_is_eager(Subject(archetype.load_spec("llama-tiny")))
    assert compiled == [2]


@pytest.mark.parametrize(
    ("in_float32", "in_float64", "result"),
    [(2e-5, None, "holds"), (2e-5, 2e-5, "fails"), (2e-2, None, "fails"), (None, None, "holds")],
)
def test_float64_tells_amplified_rounding_from_a_mistake(
    in_float32: float | None, in_float64: float | None, result: str
) -> None:
    def outputs_are_equal(subject: Subject) -> None:
        difference = in_float64 if subject is subject.exact else in_float32
        if difference is not None:
            raise Violated("outputs differ", difference)

    model = archetype.load_spec("llama-tiny")
    (row,) = check_example(Example("", model), [Invariant("outputs are equal", outputs_are_equal, needs=())])
    assert row.result == result
