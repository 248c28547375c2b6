"""Every part has a cost class of its role with all methods; parts from outside are counted by theirs, or refused."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest

from archetype import spec
from archetype.cost import cost_of, registry, set_fallback
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import FeedForwardCost, MixerCost, NormCost, PartCost, WiringCost
from archetype.cost.work import TrainingWork
from archetype.errors import SpecError
from archetype.parts.norm.cost import RMSNormCost
from archetype.parts.pattern.cost import PatternCost
from archetype.parts.position.cost import PositionCost
from archetype.parts.recurrent.cost import GRUCost
from archetype.spec.registry import PROVIDED, providers

D = symbol("D", 8)
ROLES: tuple[tuple[Any, type[PartCost]], ...] = (
    (spec.Mixer, MixerCost),
    (spec.FeedForward, FeedForwardCost),
    (spec.Norm, NormCost),
    (spec.Wiring, WiringCost),
    (spec.Pattern, PatternCost),
    (spec.MixerPosition, PositionCost),
    (spec.EmbeddingPosition, PositionCost),
)


def kinds(role: Any) -> Iterator[type[spec.Spec]]:
    """Every class that may stand in a role."""
    yield from role.kinds.values() if isinstance(role, type) else get_args(get_args(role)[0])


def lacks(kind: type[spec.Spec], role: type[PartCost]) -> list[str]:
    """What there is not of a part's cost: its class, or methods and facts of its class."""
    cost = registry.cost_class(kind)
    if cost is None or not issubclass(cost, role):
        return [role.__name__]
    facts = [name for name in role.__annotations__ if name == "complexity"]
    if role is MixerCost and issubclass(kind, spec.Attention | spec.MixersTogether):
        facts = []  # the pattern's, or those of the parts, in each of them
    return sorted([*getattr(cost, "__abstractmethods__", ()), *(name for name in facts if not hasattr(cost, name))])


@pytest.mark.parametrize(
    ("kind", "role"), [pytest.param(kind, cost, id=kind.__name__) for role, cost in ROLES for kind in kinds(role)]
)
def test_every_kind_has_a_cost_of_its_role_with_all_methods(kind: type[spec.Spec], role: type[PartCost]) -> None:
    assert lacks(kind, role) == []


class Outside(spec.Spec):
    kind: Literal["outside"] = "outside"


class SlowGRU(spec.GRU):
    pass


@pytest.fixture
def classes() -> Iterator[None]:
    """What a test registers is gone after it."""
    list(providers("cost"))  # what is imported stays registered
    before = dict(PROVIDED)
    yield
    PROVIDED.clear()
    PROVIDED.update(before)


def test_a_part_without_a_cost_lacks_its_class() -> None:
    assert lacks(Outside, MixerCost) == ["MixerCost"]
    with pytest.raises(SpecError, match="no MixerCost is registered for Outside; write a MixerCost with @cost_of"):
        MixerCost.of(Outside(), D)


@pytest.mark.usefixtures("classes")
def test_a_cost_without_a_method_lacks_it() -> None:
    @cost_of(Outside)
    class OutsideCost(MixerCost):
        def parameters(self) -> Counts:
            return {}

    assert registry.cost_class(Outside) is OutsideCost
    assert lacks(Outside, MixerCost) == ["complexity", "flops", "saved_activations"]
    assert lacks(Outside, NormCost) == ["NormCost"]
    with pytest.raises(TypeError, match="abstract"):
        MixerCost.of(Outside(), D)


def test_a_class_derived_from_a_part_costs_what_that_part_does() -> None:
    assert registry.cost_class(SlowGRU) is GRUCost
    assert MixerCost.of(SlowGRU(), D).parameters() == MixerCost.of(spec.GRU(), D).parameters()


@pytest.mark.usefixtures("classes")
def test_a_cost_from_outside_is_used() -> None:
    @cost_of(Outside)
    class OutsideCost(NormCost):
        def parameters(self) -> Formula:
            return 3 * self.d

        def saved_activations(self, vectors: int) -> int:
            return vectors

    assert NormCost.of(Outside(), D).parameters().value == 24
    assert lacks(Outside, NormCost) == []


def test_a_fallback_counts_what_nothing_is_registered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_fallback", None)  # afterwards there is again what an extension left
    set_fallback(lambda part, d: RMSNormCost(spec.RMSNorm(), d) if isinstance(part, Outside) else None)
    try:
        assert NormCost.of(Outside(), D).parameters() == D
        assert isinstance(MixerCost.of(spec.GRU(), D), GRUCost)  # what is registered stays
        with pytest.raises(SpecError, match="no MixerCost"):  # the fallback counts it in another role
            MixerCost.of(Outside(), D)
    finally:
        set_fallback(None)


def test_training_work_reads_one_cast_for_all_projections() -> None:
    assert TrainingWork(2, 3, True, "float32").input_bytes(5) == 2 * 3 * 5 * 4
    assert TrainingWork(2, 3, True, "bfloat16").input_bytes(5) == 2 * 3 * 5 * 2
    assert TrainingWork(2, 3, True, "bfloat16").input_bytes(5, tokens=4) == 4 * 5 * 2
