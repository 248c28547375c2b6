"""Letters and numbers of a diagram: the legend has each letter, and a box in a repeated block says what it counts."""

import re

import pytest

from archetype import spec
from archetype.diagram.architecture import draw, draw_in
from archetype.diagram.picture import Text, paint
from archetype.diagram.scene import Scene
from archetype.estimate.report import cost_report
from archetype.families import preset
from archetype.gallery.entries import specification
from archetype.gallery.html import ASPECT
from tests.helpers.presets import PRESETS
from tests.helpers.specs import ALL

SIZE = re.compile(r"[A-Za-z](_[a-z]+)?\d*")


def strangers(drawn: Scene) -> list[str]:
    """Texts with a letter that the legend lacks: shapes of boxes and of the stream, and sizes below a root."""
    letters = sorted((letter for letter, *_ in drawn.legend), key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, letters)) or "(?!)")
    shapes = [box.shape for box in drawn.boxes if not box.kind.startswith("layer")]  # what layers share is in words
    shapes += [note.text for note in drawn.notes if note.text.startswith("(")]
    shapes += [size for box in drawn.boxes for size in re.findall(r"√\w+", box.label)]
    return [shape for shape in shapes if SIZE.search(known.sub(" ", shape.replace("times", "")))]


@pytest.mark.parametrize("name", PRESETS)
def test_the_legend_of_every_preset_has_each_letter(name: str) -> None:
    drawn = draw(cost_report(preset(name)))
    assert strangers(drawn) == []
    written = " ".join(note.text for note in drawn.notes)
    assert [letter for letter, value, meaning in drawn.legend if f"{letter} = {value:,} " not in written] == []


def test_the_legend_has_each_letter_of_every_part() -> None:
    for name, model in ALL.items():
        assert strangers(draw(cost_report(model))) == [], name


@pytest.mark.parametrize("name", ["kimi-k3", "deepseek-v4-pro", "glm-5.3-flash", "gemma-4-e2b"])
def test_the_diagram_on_a_card_has_each_letter_and_cuts_no_text(name: str) -> None:
    model = specification(name)
    assert model is not None
    drawn = draw_in(cost_report(model, 1, 8192), "parameters", ASPECT)
    assert strangers(drawn) == []
    edges = [text.area for text in paint(drawn) if isinstance(text, Text)]
    assert min(left for left, *_ in edges) >= 0 and min(top for _, top, *_ in edges) >= 0
    assert max(right for *_, right, _ in edges) <= drawn.width and max(end for *_, end in edges) <= drawn.height


def test_a_letter_without_its_entry_is_noticed() -> None:
    drawn = draw(cost_report(preset("gpt2-tiny")))
    assert {letter for letter, *_ in drawn.legend} >= {"B", "T", "S", "H", "P", "D", "V"}
    for entry in drawn.legend:
        without = tuple(one for one in drawn.legend if one != entry)
        assert strangers(Scene(**vars(drawn) | {"legend": without})), entry


def test_key_positions_and_tokens_of_a_source_have_their_values() -> None:
    def values(model: spec.ModelSpec, **sizes: int) -> dict[str, int]:
        return {letter: value for letter, value, _ in draw(cost_report(model, **sizes)).legend}

    assert values(preset("llama-tiny"), length=48)["S"] == 48
    pair = values(preset("transformer-tiny"), length=24)
    assert pair["T"] == pair["S"] == pair["T_s"] == 24
    shapes = {box.id: box.shape for box in draw(cost_report(preset("transformer-tiny"))).boxes}
    scores = [shapes[f"{place}.scores"] for place in ("encoder.blocks.*.mixer", "decoder.blocks.*.mixer",
                                                      "decoder.blocks.*.cross")]  # fmt: skip
    assert scores == ["(B, H, T_s, T_s)", "(B, H, T, S)", "(B, H, T, T_s)"]


def test_sizes_of_two_parts_with_one_letter_are_told_apart() -> None:
    drawn = draw(cost_report(preset("qwen3-next-80b-a3b")))
    values = {letter: value for letter, value, _ in drawn.legend}
    (mixture,) = (box for box in drawn.boxes if box.label == "weights · v")
    (rule,) = (box for box in drawn.boxes if box.label == "gated delta rule")
    heads, width = re.findall(r"[HP]\d", mixture.shape)
    assert (values[heads], values[width]) == (16, 256)
    assert values[re.findall(r"H\d", rule.shape)[0]] == 32


def texts(model: spec.ModelSpec, ending: str) -> list[str]:
    """What stands in the boxes of an ending."""
    items = [item for item in paint(draw(cost_report(model))) if isinstance(item, Text)]
    return [item.text for item in items if item.owner.endswith(ending)]


def test_a_box_in_a_repeated_block_says_how_often_it_counts_what() -> None:
    for norm in ("mixer_norm", "feedforward_norm"):
        assert texts(preset("llama-3-8b"), f".{norm}") == ["RMSNorm", "32 × 4,096"]
    assert texts(preset("llama-3-8b"), "final_norm") == ["RMSNorm", "4,096"]
    assert "32 × 16.8 M" in texts(preset("llama-3-8b"), "mixer.q")


def test_layers_that_share_their_weights_count_them_once() -> None:
    assert texts(preset("albert-base"), ".mixer_norm") == ["LayerNorm", "1,536"]
    drawn = draw(cost_report(preset("albert-base")))
    (norm,) = (box for box in drawn.boxes if box.id.endswith(".mixer_norm"))
    (query,) = (box for box in drawn.boxes if box.id.endswith("mixer.q"))
    assert (norm.repeat, norm.sets, norm.each("parameters"), query.each("flops")[0]) == (12, 1, (1, 1536), 12)
    said = [item.says for item in paint(drawn) if getattr(item, "name", "") == norm.id]
    assert "1,536 parameters (one set of weights for 12 layers)" in said[0]
    some = spec.assign(preset("llama-tiny"), ["num_layers=6", "layers[2,4].weights_of=0"])
    assert texts(some, ".mixer_norm") == ["RMSNorm", "4 × 64"]
