"""Diagrams: every cost is in one box, text fits and overlaps nothing, wires touch what they connect."""

import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed

import archetype
from archetype import spec
from archetype.cost.formula import Formula
from archetype.diagram import MEASURES, Drawing, Scene
from archetype.diagram.architecture import draw
from archetype.diagram.compare import compared
from archetype.diagram.costs import ReportCosts
from archetype.diagram.picture import Area, Text, paint
from archetype.diagram.scene import Cost
from archetype.diagram.stack import fold
from archetype.diagram.svg import svg
from archetype.errors import ArchetypeError
from archetype.estimate.report import cost_report
from archetype.families import preset
from tests.helpers.examples import every, examples
from tests.helpers.presets import PRESETS
from tests.helpers.specs import ALL, block, decoder
from tests.helpers.strategies import decoders, encoder_decoders, encoders, megabytes, ngrams, vision_encoders

KINDS = {
    "decoder": decoders, "encoder": encoders, "encoder-decoder": encoder_decoders, "n-gram": ngrams,
    "megabyte": megabytes, "vision encoder": vision_encoders,
}  # fmt: skip
NEAR = 0.01  # pixels


@cache
def scene(name: str) -> Scene:
    """The scene of a preset."""
    return draw(cost_report(preset(name)))


def check(model: spec.ModelSpec, drawn: Scene | None = None) -> Scene:
    """All that must hold of a diagram."""
    report = cost_report(model)
    drawn = drawn or draw(report)
    total = sum((box.cost for box in drawn.boxes), Cost())
    parameters, active, flops = report.parameters["total"], report.parameters["active"], report.flops["forward"]
    assert (total.parameters, total.active, total.flops) == (parameters, active, flops)
    assert total.bytes == report.memory["weights"]
    ids = [item.id for item in (*drawn.boxes, *drawn.containers)]
    assert len(set(ids)) == len(ids)
    check_places(drawn)
    text = svg(drawn)
    root = ElementTree.fromstring(text)
    marks = [element.get("data-id") for element in root.iter() if element.get("data-id")]
    assert {box.id for box in drawn.boxes} <= set(marks)
    json.dumps(drawn.to_json())
    return drawn


def check_places(drawn: Scene) -> None:
    """Text stands alone and within its box; boxes overlap no boxes; wires begin and end on what they connect."""
    texts = [item for item in paint(drawn) if isinstance(item, Text) and item.text]
    assert overlapping([(text.text, text.area) for text in texts]) == []
    places = {box.id: (box.x, box.y, box.x + box.w, box.y + box.h) for box in drawn.boxes}
    outside = [text for text in texts if text.owner and not within(text.area, places[text.owner])]
    assert outside == []
    assert [text.text for text in texts if not within(text.area, (0, 0, drawn.width, drawn.height))] == []
    assert overlapping(list(places.items())) == []
    boxes_and_notes = [*places.items(), *((text.text, text.area) for text in texts if not text.owner)]
    assert overlapping(boxes_and_notes) == []
    areas = places | {
        container.id: (container.x, container.y, container.x + container.w, container.y + container.h)
        for container in drawn.containers
    }
    assert [wire for wire in drawn.wires if not (touches(wire.points[0], areas[wire.source]))] == []
    assert [wire for wire in drawn.wires if not (touches(wire.points[-1], areas[wire.target]))] == []
    crossed = [
        (wire.source, wire.target, name)
        for wire in drawn.wires
        for start, end in pairwise(wire.points)
        for name, area in boxes_and_notes
        if name not in (wire.source, wire.target) and crosses(start, end, area)
    ]
    assert crossed == []
    assert [wire for wire in drawn.wires if any(x != u and y != v for (x, y), (u, v) in pairwise(wire.points))] == []


def overlapping(areas: list[tuple[str, tuple[float, float, float, float]]]) -> list[tuple[str, str]]:
    """The names of every two areas that share more than an edge."""
    ordered = sorted(areas, key=lambda area: area[1][1])
    overlaps = []
    for index, (name, (left, top, right, bottom)) in enumerate(ordered):
        for other, (x, y, x2, y2) in ordered[index + 1 :]:
            if y >= bottom - NEAR:
                break
            if x < right - NEAR and left < x2 - NEAR and y2 > top + NEAR:
                overlaps.append((name, other))
    return overlaps


def within(inner: tuple[float, ...], outer: tuple[float, ...]) -> bool:
    x, y, x2, y2 = inner
    left, top, right, bottom = outer
    return x >= left - NEAR and y >= top - NEAR and x2 <= right + NEAR and y2 <= bottom + NEAR


def crosses(start: tuple[float, float], end: tuple[float, float], area: tuple[float, float, float, float]) -> bool:
    """Whether a line, across or upright, goes through an area."""
    left, top, right, bottom = area
    across = min(start[0], end[0]) < right - 1 and max(start[0], end[0]) > left + 1
    return across and min(start[1], end[1]) < bottom - 1 and max(start[1], end[1]) > top + 1


def touches(point: tuple[float, float], area: tuple[float, float, float, float]) -> bool:
    """Whether a point is on the edge of an area."""
    (x, y), (left, top, right, bottom) = point, area
    inside = within((x, y, x, y), area)
    return inside and min(abs(x - left), abs(x - right), abs(y - top), abs(y - bottom)) < NEAR


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_drawn(name: str) -> None:
    check(preset(name), scene(name))


@pytest.mark.parametrize("kind", KINDS)
def test_random_models_are_drawn(kind: str) -> None:
    @seed(7)
    @given(KINDS[kind]())
    @examples(8, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    def drawn(model: spec.ModelSpec) -> None:
        check(model)

    drawn()


def test_every_part_is_drawn() -> None:
    for model in ALL.values():
        check(model)


def test_a_wrong_cost_and_a_wrong_place_are_noticed() -> None:
    drawn = scene("gpt2")
    first, *rest = drawn.boxes
    with pytest.raises(AssertionError):
        check(preset("gpt2"), replace(drawn, boxes=(*rest, replace(first, cost=Cost(1)))))
    with pytest.raises(AssertionError):
        check_places(replace(drawn, boxes=(*rest, replace(first, y=first.y + 3))))
    with pytest.raises(AssertionError):
        check_places(replace(drawn, boxes=(*rest, replace(first, label="W" * 400, shape=""), replace(first, id="two"))))


def test_repeated_blocks_are_drawn_once_and_count_as_often_as_they_stand() -> None:
    one, twelve = (draw(cost_report(spec.assign(preset("gpt2"), [f"num_layers={n}"]))) for n in (1, 12))
    alone = {box.id.replace("blocks.0", "blocks.*"): box for box in one.boxes}
    assert alone.keys() == {box.id for box in twelve.boxes}
    in_blocks = [box for box in twelve.boxes if box.id.startswith("blocks.*") and box.cost.parameters]
    assert len(in_blocks) == 8
    for box in in_blocks:
        assert (box.repeat, box.cost.parameters) == (12, 12 * alone[box.id].cost.parameters)
    assert [container.repeat for container in twelve.containers if container.kind == "block"] == [12]
    assert fold("aaaaabaaaaabaa") == [(2, [("a", 5), ("b", 1)]), (1, [("a", 2)])]  # type: ignore[arg-type]
    mixed = spec.assign(preset("llama-tiny"), ["num_layers=9", "layers[::3].mixer={kind: mamba}"])
    shown = check(mixed)
    assert [(container.repeat, container.kind) for container in shown.containers if container.kind == "repeat"] == [
        (3, "repeat")
    ]
    assert [(box.label[0], box.shape) for box in shown.boxes if box.kind.startswith("layer")] == [
        ("A", ""),
        ("B", "× 2"),
    ]


def test_layers_that_share_weights_or_keys_say_so_in_the_list_of_layers_and_at_their_blocks() -> None:
    def said(*assignments: str) -> tuple[list[str], list[str]]:
        drawn = check(spec.assign(preset("llama-tiny"), assignments))
        rows = [box.shape for box in drawn.boxes if box.kind.startswith("layer")]
        return rows, [one.label for one in drawn.containers if one.kind == "block"]

    window = "layers[:3].mixer.pattern={kind: window, size: 8}"
    keys = ("num_layers=12", window, "layers[8:].mixer.keys_from=7", "layers[4].mixer.keys_from=-1")
    assert said(*keys) == (
        ["× 3", "keys for layer 4", "keys of layer 3", "× 3 · keys for layers 8-11", "× 4 · keys of layer 7"],
        ["A × 3", "B × 4 · keys for layers 4,8-11", "C · keys of layer 3", "D × 4 · keys of layer 7"],
    )
    before = [f"layers[{layer}].mixer.keys_from=-1" for layer in (1, 3, 5)]
    assert said("num_layers=6", *before)[0] == ["keys for layers 1,3..5", "keys of the layer before"]
    weights = ("num_layers=6", "layers[1::2].mixer={kind: mamba}", "layers[4].weights_of=2", "layers[3,5].weights_of=1")
    assert said(*weights) == (["2 sets of weights", "shared"], ["A × 3 · 2 sets of weights", "B × 3 · shared"])
    plain = ("num_layers=6", "layers[1::2].mixer={kind: mamba}")
    assert said(*plain) == (["", ""], ["A × 3", "B × 3"])


def test_norms_stand_where_the_wiring_puts_them() -> None:
    def order_of(kind: str) -> list[str]:
        model = decoder(block(wiring={"kind": kind, "norm": {"kind": "layer"}}))
        drawn = sorted(draw(cost_report(model)).boxes, key=lambda box: -box.y - box.h)
        names = [box.id.removeprefix("blocks.0.") for box in drawn]
        return [name for name in names if name in ("mixer_norm", "mixer.q", "mixer_post_norm", "mixer_sum")]

    assert order_of("pre_norm") == ["mixer_norm", "mixer.q", "mixer_sum"]
    assert order_of("post_norm") == ["mixer.q", "mixer_sum", "mixer_norm"]
    assert order_of("output_norm") in (["mixer.q", "mixer_norm", "mixer_sum"], ["mixer.q", "mixer_sum", "mixer_norm"])
    assert order_of("sandwich")[:2] == ["mixer_norm", "mixer.q"]


def test_tied_weights_and_the_view_of_the_source_are_wires() -> None:
    def kinds(name: str) -> set[tuple[str, str, str]]:
        return {(wire.source, wire.target, wire.kind) for wire in scene(name).wires if wire.kind != "branch"}

    assert ("embedding.token", "lm_head", "tied") in kinds("gpt2")
    assert not any(kind == "tied" for *_, kind in kinds("llama-2-7b"))
    assert {("encoder.output", f"decoder.blocks.*.cross.{name}", "source") for name in "kv"} <= kinds(
        "transformer-base"
    )
    assert ("encoder.blocks.*", "decoder.blocks.*", "state") in kinds("seq2seq-lstm")
    assert ("projection", "local_embedding.sum", "source") in kinds("megabyte-tiny")


def test_two_equal_specifications_differ_in_nothing() -> None:
    for name in ("gpt2", "gemma3-1b", "t5-small", "ngram-tiny"):
        drawn = compared((preset(name), scene(name)), (preset(name), scene(name)))
        assert {item.change for item in (*drawn.boxes, *drawn.containers)} == {""}
        assert any(note.text == "no difference" for note in drawn.notes)


CHANGES = {
    "llama-tiny": [
        "d_model=32", "vocab_size=99", "context_length=77", "num_layers=3", "layers[*].mixer.num_kv_heads=1",
        "layers[0].mixer={kind: mamba}", "layers[*].wiring.norm.eps=0.1", "layers[1].feedforward.d_ff=80",
        "layers[*].feedforward={kind: none}", "layers[*].dropout=0.1", "embedding.position=learned",
        "embedding.scale=2.0", "final_norm={kind: layer}", "head.tied=true", "initialization={kind: normal, std: 0.5}",
        "layers[*].wiring={kind: sandwich, norm: {kind: rms}}", "layers[-1].mixer.pattern={kind: window, size: 8}",
    ],
    "transformer-tiny": ["decoder.layers[*].cross_attention.num_heads=1", "encoder.num_layers=1",
                         "embedding.shared=false", "encoder.layers[0].feedforward.d_ff=70"],
    "megabyte-tiny": ["global_model.layers[*].mixer.num_heads=2", "patch_size=2"],
    "ngram-tiny": ["n=2", "hidden=[20]", "activation=relu"],
    "vit-tiny": ["class_token=false", "num_channels=4", "pooler=true"],
}  # fmt: skip


def test_every_changed_field_marks_a_box() -> None:
    for name, assignments in CHANGES.items():
        for assignment in assignments:
            old, new = preset(name), spec.assign(preset(name), [assignment])
            drawn = compared((old, scene(name)), (new, draw(cost_report(new))))
            fields = [path for path, _, _ in spec.differences(old, new)]
            assert fields, assignment
            marked = {item.id[:1] for item in (*drawn.boxes, *drawn.containers) if item.change}
            assert "b" in marked, assignment
            for path in fields:
                assert any(note.text.startswith(f"{path}: ") for note in drawn.notes), path


def test_what_was_added_and_removed_is_marked_so() -> None:
    old, new = preset("llama-tiny"), spec.assign(preset("llama-tiny"), ["layers[*].mixer={kind: mamba}"])
    drawn = compared((old, scene("llama-tiny")), (new, draw(cost_report(new))))
    changes = {box.id: box.change for box in drawn.boxes}
    assert changes["a:blocks.*.mixer.q"] == "removed"
    assert changes["b:blocks.*.mixer.conv"] == "added"
    assert changes["a:blocks.*.feedforward.up"] == changes["b:lm_head"] == ""
    assert {container.id: container.change for container in drawn.containers}["b:blocks.*.mixer"] == "changed"


def test_a_letter_that_stands_for_different_numbers_says_whose() -> None:
    names = "gpt2-tiny", "llama-3-8b"
    drawn = compared(*((preset(name), scene(name)) for name in names))
    letters = {letter: value for letter, value, _ in drawn.legend}
    assert len(letters) == len(drawn.legend) and letters["D of gpt2-tiny"] == 64 and letters["D of llama-3-8b"] == 4096
    for name in names:
        for letter, value, _ in scene(name).legend:
            assert letters.get(letter, letters.get(f"{letter} of {name}")) == value
    same = compared(*((preset("gpt2-tiny"), scene("gpt2-tiny")),) * 2)
    assert same.legend == scene("gpt2-tiny").legend


def test_a_pooler_is_drawn_where_there_is_one() -> None:
    for has_one in (True, False):
        model = spec.assign(preset("bert-tiny"), [f"pooler={str(has_one).lower()}", "head={kind: none}"])
        assert ("pooler" in {box.id for box in check(model).boxes}) == has_one


def test_formulas_are_written_in_the_letters_of_shapes() -> None:
    costs = ReportCosts(cost_report(preset("llama-tiny")))
    d, heads, width = (
        Formula({((one, 1),): 1}) for name in "DHP" for one, letter in costs.symbols.items() if letter == name
    )
    assert costs.text(heads * width) == "HP"
    assert costs.text(d * d + heads * width) == "D² + HP"
    assert costs.text(d * d * d) == "D³"


def test_bars_show_the_measure_that_is_asked_for() -> None:
    for measure in MEASURES:
        drawn = archetype.draw("mixtral-tiny", measure=measure, length=32).scene
        amounts = [getattr(box.cost, measure) for box in drawn.boxes]
        bars = [item.w for item in paint(drawn) if isinstance(item, Area) and item.style.startswith("bar")]
        assert len(bars) >= sum(amount > 0 for amount in amounts) - 10  # norms have none
        assert max(bars) == 108.0
    with pytest.raises(ArchetypeError, match="unknown measure 'mass'"):
        archetype.draw("gpt2", measure="mass")  # type: ignore[arg-type]


def test_a_drawing_is_saved_as_its_name_says(tmp_path: Path) -> None:
    drawing = archetype.draw("gpt2-tiny")
    assert isinstance(drawing, Drawing)
    assert drawing._repr_svg_() == drawing.svg == drawing.save(tmp_path / "a.svg").read_text()
    assert archetype.draw("bigram-tiny").save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(drawing.save(tmp_path / "a.json").read_text())["boxes"][0]["cost"].keys() == set(MEASURES)
    with pytest.raises(ArchetypeError, match=r"unknown suffix '\.gif'"):
        drawing.save(tmp_path / "a.gif")


@pytest.mark.parametrize("name", every(3, ["t5-tiny", "llama-tiny", "deepseek-v2-tiny"]))
def test_a_pdf_has_the_size_of_the_svg_and_every_text_as_text(name: str, tmp_path: Path) -> None:
    drawing = archetype.draw(name)
    data = drawing.save(tmp_path / "a.pdf").read_bytes()
    assert data == drawing.pdf() and data.startswith(b"%PDF-")
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", data)
    assert box is not None
    size = [float(side) * 96 / 72 for side in box.groups()]
    assert size == pytest.approx([drawing.scene.width, drawing.scene.height], abs=0.01)
    assert b"/Type3" not in data and b"/ToUnicode" in data  # letters are characters of a font, not outlines
    written = texts_of_pdf(data)
    shown = [item.text for item in paint(drawing.scene) if isinstance(item, Text) and item.text.isascii()]
    shown = [text for text in shown if not re.search("f[fil]", text)]  # ligatures, which have codes of their own
    assert len(shown) > 20 and [text for text in shown if text not in written] == []


def texts_of_pdf(data: bytes) -> set[str]:
    """The texts of the page, each as it is shown in one piece; characters are two bytes, brackets are escaped."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
    (page,) = (page for page in map(inflated, streams) if b"\nBT\n" in page)
    shown = re.findall(rb"\nBT\n(.*?)\nET\n", page, re.DOTALL)
    pieces = (re.findall(rb"\(((?:\\.|[^\\)])*)\)", one, re.DOTALL) for one in shown)
    escape = re.compile(rb"\\(.)", re.DOTALL)
    return {b"".join(escape.sub(rb"\1", piece) for piece in one).decode("utf-16-be") for one in pieces}


def inflated(stream: bytes) -> bytes:
    """A stream without its compression; empty where it has another."""
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_text_of_a_name_is_escaped() -> None:
    named = preset("gpt2-tiny").replace(name='<script>alert(1)</script> & "more"')
    text = svg(draw(cost_report(named)))
    assert "<script>" not in text
    ElementTree.fromstring(text)


def test_a_bias_of_the_stack_stands_apart_from_contents_that_stand_side_by_side() -> None:
    wiring = spec.ParallelResidual(norm=spec.LayerNorm())
    biased = block(mixer=spec.Attention(num_heads=2, position=spec.RelativeBias()), wiring=wiring)
    check(decoder(biased, biased))


def shapes(text: str) -> list[tuple[object, ...]]:
    """What a picture shows: boxes with their places, lines from point to point, and texts with their fonts."""
    root = ElementTree.fromstring(text)
    rules = dict(re.findall(r"^\.(\w+) \{ (.*) \}$", text.partition("@media")[0], re.MULTILINE))
    boxes = {each.get("id"): each for each in root.iter(f"{SVG}rect") if each.get("id")}
    shown: list[tuple[object, ...]] = []
    for each in root.iter():
        classes = [rules[name] for name in each.get("class", "").split()]
        at = [round(float(each.get(name, "0"))) for name in ("x", "y")]
        if each.tag in (f"{SVG}rect", f"{SVG}use") and each.get("x"):
            box = boxes.get(each.get("href", "#")[1:], each)
            sizes = (round(float(box.get(name, "0"))) for name in ("width", "height", "rx"))
            shown.append(("box", rules[box.get("class", "")], *at, *sizes))
        elif each.tag == f"{SVG}text":
            shown.append(("text", *classes, *at, each.text))
        elif each.tag == f"{SVG}path":
            paths = re.findall(r"[^Mz]+z?", each.get("d", ""))
            shown += [("line", *classes, *(round(float(n)) for n in re.findall(r"-?[\d.]+", path))) for path in paths]
    return sorted(shown, key=repr)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["llama-tiny", "deepseek-v4-tiny", "t5-tiny"])
def test_a_compact_picture_shows_the_same(name: str) -> None:
    scene = draw(cost_report(preset(name)))
    whole, compact = svg(scene), svg(scene, compact=True)
    assert shapes(compact) == shapes(whole) and len(shapes(whole)) > 50
    assert len(compact) < 0.8 * len(whole)
    wrong = re.sub(r'(<use href="#\w+" x=")(\d+)', lambda one: f"{one[1]}{int(one[2]) + 2}", compact, count=1)
    assert shapes(wrong) != shapes(whole)
