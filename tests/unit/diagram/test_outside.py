"""Kinds from outside are drawn too, and the frame of all drawings knows no kind."""

from collections.abc import Iterator
from typing import Literal

import pytest

from archetype import spec
from archetype.cost.registry import cost_of
from archetype.diagram import Cell, Inside, inside_of
from archetype.diagram.architecture import draw
from archetype.diagram.block import contents
from archetype.estimate.report import cost_report
from archetype.families import preset
from archetype.models.megabyte.cost import MegaByteCost
from archetype.models.megabyte.diagram import megabyte
from archetype.models.spec import CausalSpec
from archetype.models.stack.spec import SizedStack, StackView
from archetype.parts.head.spec import LanguageModelHead
from archetype.roles.drawing import inside, title
from archetype.spec.registry import PROVIDED, provided, provides
from tests.helpers import registered
from tests.unit.diagram.test_diagram import check
from tests.unit.test_imports import MODULES, folder, imported, layer


class Patches(CausalSpec):
    """MegaByte under another name, with nothing but a cost."""

    kind: Literal["patches"] = "patches"
    vocab_size: int
    context_length: int
    patch_size: int
    global_model: SizedStack
    local_model: SizedStack
    head: LanguageModelHead = LanguageModelHead()
    initialization: spec.Initialization = spec.GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        sides = (("global_model.", self.global_model), ("local_model.", self.local_model))
        return tuple(StackView(prefix, side.layers, side.final_norm, side.d_model, True) for prefix, side in sides)


def patches() -> Patches:
    cost_of(Patches)(MegaByteCost)
    known = preset("megabyte-tiny")
    return Patches.model_validate({name: getattr(known, name) for name in Patches.model_fields if name != "kind"})


class ThirdGRU(spec.GRU):
    """Under a name of its own."""

    kind: Literal["third_gru"] = "third_gru"  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def registry_as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    with registered.registries_as_before():
        yield


def test_a_kind_of_model_without_a_drawing_shows_its_stacks_and_all_modules_with_their_costs() -> None:
    known, model = preset("megabyte-tiny"), patches()
    drawn = draw(cost_report(model))
    total = cost_report(model).parameters["total"]
    assert sum(box.cost.parameters for box in drawn.boxes) == total == cost_report(known).parameters["total"]
    blocks = [container.id for container in drawn.containers if container.kind == "block"]
    assert blocks == ["global_model.blocks.*", "local_model.blocks.*"]
    assert {"projection", "lm_head", "global_embedding.token"} <= {box.id for box in drawn.boxes}
    check(model, drawn)


def test_a_kind_of_model_from_outside_is_drawn_as_it_says() -> None:
    known, model = preset("megabyte-tiny"), patches()
    provides("diagram", Patches)(megabyte)
    assert [box.id for box in draw(cost_report(model)).boxes] == [box.id for box in draw(cost_report(known)).boxes]


def test_a_derived_kind_is_drawn_as_the_one_it_comes_from_and_called_as_itself() -> None:
    part = ThirdGRU()
    assert inside(part, ["cell"]) == inside(spec.GRU(), ["cell"])
    assert (title(part), title(spec.GRU())) == ("Third gru", "GRU")

    @inside_of(ThirdGRU)
    def third(mixer: ThirdGRU, modules: frozenset[str]) -> Inside:
        return Inside((Cell("cell", 0, 0, ("x",)),), "cell")

    assert [cell.name for cell in inside(part, ["cell", "more"]).cells] == ["cell", "more"]
    assert len(inside(spec.GRU(), ["cell"]).cells) == 5


def test_every_content_and_every_kind_of_model_has_a_drawing_of_its_own() -> None:
    spec.json_schema()  # loads all kinds
    roles: tuple[type[spec.Part], ...] = (spec.Mixer, spec.FeedForward, spec.Wiring, spec.ModelSpec)
    ours = [kind for role in roles for kind in role.kinds.values() if kind.__module__.startswith("archetype.")]
    assert len(ours) > 20
    without = [kind for kind in ours if not kind.is_absent and ("diagram", kind) not in PROVIDED]
    assert without == []
    assert provided("diagram", spec.NoFeedForward) is None
    block = preset("transformer-tiny").stacks[1].layers[0]
    assert list(contents(block)) == ["mixer", "cross", "feedforward"]


def test_the_frame_of_drawings_knows_no_part_and_no_kind_of_model() -> None:
    frames = {"models.block", "models.stack", "models.cost", "models.spec"}
    known = {folder(name) for module in MODULES if layer(module) == "diagram" for name in imported(module)
             if layer(name) in ("parts", "models")}  # fmt: skip
    assert known == frames
