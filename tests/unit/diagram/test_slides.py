"""What nothing says how to draw, kinds and sizes of two models apart, and pictures in a proportion."""

import pytest

import archetype
from archetype.cost import cost_report, total_parameters
from archetype.diagram import architecture
from archetype.diagram.aspect import with_aspect
from archetype.diagram.colours import DARK, LIGHT, area_paint
from archetype.diagram.picture import smallest_text
from archetype.errors import SpecError
from archetype.roles.drawing import X, inside
from archetype.roles.mixer import Mixer
from archetype.spec.edit import assign
from tests.helpers.examples import every
from tests.unit.diagram.test_diagram import PRESETS, check_places


class Swing(Mixer):
    """A mixer from outside, without a diagram.py."""

    kind: str = "swing"
    width: int = 4
    decay: float = 0.5


def test_a_part_that_nothing_draws_is_one_box_with_its_kind_and_fields() -> None:
    drawn = inside(Swing(width=8), ["left", "right", "gate"])
    (cell,) = drawn.cells
    assert (cell.label, cell.shape, cell.rows) == ("Swing", "width 8", ("left", "right", "gate"))
    assert cell.inputs == (X,) and drawn.output == cell.name  # the stream goes through it


def test_kinds_that_differ_are_coloured_and_sizes_tinted() -> None:
    spec = archetype.load_spec("llama-tiny")
    other = assign(spec, ["layers[1].mixer=mamba", "layers[0].feedforward.d_ff=256"])
    drawing = archetype.draw(spec, other)
    changes = {item.id: item.change for item in (*drawing.scene.boxes, *drawing.scene.containers)}
    assert changes["a:blocks.*.mixer"] == "changed" and changes["b:blocks.1.mixer.in_proj"] == "added"
    for item in ("feedforward", "feedforward.gate", "feedforward.down"):
        assert changes[f"a:blocks.*.{item}"] == changes[f"b:blocks.0.{item}"] == "resized"
    assert not changes["b:blocks.0.mixer"] and not changes["b:blocks.1.feedforward"]
    for colours in (LIGHT, DARK):
        plain, resized, changed = (area_paint("box mixer", change, colours) for change in ("", "resized", "changed"))
        assert resized.fill == colours.tint != plain.fill and resized.edge == plain.edge
        assert changed.edge == colours.changes["changed"] and changed.fill == plain.fill
    assert "boxes resized: 6" in drawing.svg and LIGHT.tint in drawing.svg and DARK.tint in drawing.svg


def test_a_scaled_output_is_on_the_card_of_the_last_sublayer() -> None:
    """Behind its sum; a layer without the scale has a card of its own."""
    spec = assign(archetype.load_spec("llama-tiny"), ["layers[0].output_scale=true"])
    scene = architecture._with_cards(cost_report(spec), "parameters", "16:9")
    assert scene is not None
    check_places(scene)
    (scale,) = [box for box in scene.boxes if box.id.endswith("output_scale")]
    assert (scale.label, scale.cost.parameters) == ("× learned scale", 1)
    cards = [each for each in scene.containers if each.id.endswith(".card")]
    (card,) = [each for each in cards if each.x < scale.x < each.x + each.w and each.y < scale.y < each.y + each.h]
    assert card.id == "blocks.0.feedforward.card" and len(cards) == 3
    assert sum(box.cost.parameters for box in scene.boxes) == total_parameters(spec)


@pytest.mark.parametrize("aspect", ["16:9", "9:16", "1:1"])
@pytest.mark.parametrize("other", ["gpt2-tiny"])
def test_two_models_have_the_proportion_of_a_slide(aspect: str, other: str) -> None:
    """By margins alone: all stands as before, in the middle."""
    plain = archetype.draw("llama-tiny", other).scene
    scene = archetype.draw("llama-tiny", other, aspect=aspect).scene
    wide, high = map(int, aspect.split(":"))
    assert scene.width / scene.height == pytest.approx(wide / high)
    assert scene.width == plain.width or scene.height == plain.height
    dx, dy = (scene.width - plain.width) / 2, (scene.height - plain.height) / 2
    assert [box.x - dx for box in scene.boxes] == pytest.approx([box.x for box in plain.boxes])
    assert [box.y - dy for box in scene.boxes] == pytest.approx([box.y for box in plain.boxes])
    assert len(scene.wires) == len(plain.wires) and len(scene.notes) == len(plain.notes)


@pytest.mark.parametrize(
    ("name", "least"),
    [("llama-3-8b", 10), ("gemma2-2b", 10), ("mixtral-8x7b", 10), ("t5-small", 8), ("switch-base-8", 7)],
)
def test_text_is_readable_on_a_slide(name: str, least: float) -> None:
    """Points of the smallest text where the slide is 13.33 inches wide."""
    scene = archetype.draw(name, aspect="16:9").scene
    assert scene.width / scene.height == pytest.approx(16 / 9)
    assert 960 / scene.width * smallest_text(scene) >= least
    plain = archetype.draw(name).scene
    assert sum(box.cost.parameters for box in scene.boxes) == sum(box.cost.parameters for box in plain.boxes)
    assert 960 / with_aspect(plain, "16:9").width * smallest_text(plain) < least


@pytest.mark.parametrize("name", every(6, PRESETS))
def test_a_slide_of_every_preset_is_free_of_overlaps(name: str) -> None:
    check_places(archetype.draw(name, aspect="16:9").scene)


@pytest.mark.parametrize("aspect", ["16x9", "16:0", "0:9", "16:", "-1:2", "a:b", "1:2:3", ""])
def test_what_is_no_proportion_is_refused(aspect: str) -> None:
    with pytest.raises(SpecError, match="is not an aspect ratio; write width and height, such as 16:9"):
        archetype.draw("llama-tiny", aspect=aspect)
