"""Every part has a cost class of its role with all methods; parts from outside are counted by theirs, or refused."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest

from archetype import spec
from archetype.cost import cost_of, registry, set_fallback
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.norm import RMSNormCost
from archetype.cost.pattern import PatternCost
from archetype.cost.position import PositionCost
from archetype.cost.recurrent import GRUCost
from archetype.cost.registry import FeedForwardCost, MixerCost, NormCost, PartCost, WiringCost
from archetype.cost.work import TrainingWork
from archetype.errors import SpecError
from archetype.spec.part import part_files

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
    if role is MixerCost and issubclass(kind, spec.Attention):
        facts = []  # the pattern's, in each attention
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
def classes(monkeypatch: pytest.MonkeyPatch) -> dict[type[spec.Spec], type[PartCost]]:
    """The registered classes, restored after the test."""
    registry.cost_class(spec.GRU)  # registers this package's own
    copy = dict(registry._classes)
    monkeypatch.setattr(registry, "_classes", copy)
    return copy


def test_a_part_without_a_cost_lacks_its_class() -> None:
    assert lacks(Outside, MixerCost) == ["MixerCost"]
    with pytest.raises(SpecError, match="no MixerCost is registered for Outside; write one, with @cost_of"):
        MixerCost.of(Outside(), D)


def test_a_cost_without_a_method_lacks_it(classes: dict[type[spec.Spec], type[PartCost]]) -> None:
    @cost_of(Outside)
    class OutsideCost(MixerCost):
        def parameters(self) -> Counts:
            return {}

    assert classes[Outside] is OutsideCost
    assert lacks(Outside, MixerCost) == ["complexity", "flops", "saved_activations", "state"]
    assert lacks(Outside, NormCost) == ["NormCost"]
    with pytest.raises(TypeError, match="abstract"):
        MixerCost.of(Outside(), D)


def test_a_class_derived_from_a_part_costs_what_that_part_does() -> None:
    assert registry.cost_class(SlowGRU) is GRUCost
    assert MixerCost.of(SlowGRU(), D).parameters() == MixerCost.of(spec.GRU(), D).parameters()


def test_a_cost_from_outside_is_used(classes: dict[type[spec.Spec], type[PartCost]]) -> None:
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


def test_registered_files_are_all_files_of_parts() -> None:
    """A file of costs that is not called as its part's would register nothing."""
    from pathlib import Path

    folder = Path(registry.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "@cost_of(spec." in path.read_text(encoding="utf-8")}
    assert files == set(part_files())


def test_training_work_reads_one_cast_for_all_projections() -> None:
    assert TrainingWork(2, 3, True, "float32").input_bytes(5) == 2 * 3 * 5 * 4
    assert TrainingWork(2, 3, True, "bfloat16").input_bytes(5) == 2 * 3 * 5 * 2
    assert TrainingWork(2, 3, True, "bfloat16").input_bytes(5, tokens=4) == 4 * 5 * 2
