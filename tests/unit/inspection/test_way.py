"""One token's way: what each box of the diagram gives at a position is what the traced pass has there."""

from typing import Any

import pytest
import torch

from archetype import families
from archetype.diagram.architecture import draw
from archetype.errors import SpecError
from archetype.estimate.report import cost_report
from archetype.families.index import preset_facts
from archetype.inspection import Inspection
from archetype.inspection.inputs import Inputs
from archetype.inspection.trace import Trace, Tracer
from archetype.inspection.way import Station, way
from archetype.models.build import Model, build
from archetype.models.stack.cost import label, labelled
from tests.helpers.cases import case
from tests.helpers.weights import randomize
from tests.unit.api.test_extension import linear_attention, registries_as_before  # noqa: F401

KINDS = (
    "llama-tiny", "gpt2-tiny", "bert-tiny", "t5-tiny", "deepseek-v2-tiny", "mixtral-tiny", "mamba-tiny", "lstm-tiny",
    "ngram-tiny", "megabyte-tiny", "vit-tiny", "gemma3-tiny",
)  # fmt: skip
POSITION, SOURCE = 5, 3
every = pytest.mark.parametrize(
    "names",
    [KINDS, pytest.param(tuple(name for name in preset_facts() if name.endswith("-tiny")), marks=pytest.mark.slow)],
    ids=["unlike", "all"],
)


def a_pass(name: str) -> tuple[Model, Inputs]:
    """A model with random weights, and what it reads."""
    model = randomize(build(families.preset(name))).eval()
    generator = torch.Generator().manual_seed(2)
    if model.spec.reads_images:
        channels, side = model.spec.image_shape  # type: ignore[misc]
        images = torch.rand(1, channels, side, side, generator=generator)
        tokens = tuple(map(str, range(model.spec.context_length)))
        return model, Inputs({"images": images}, tokens)
    ids = torch.randint(1, model.spec.input_vocab_size - 1, (1, 9), generator=generator)
    names = tuple(map(str, ids[0].tolist()))
    if not model.spec.reads_source:
        return model, Inputs({"tokens": ids}, names, ids=ids)
    target = torch.randint(1, model.spec.vocab_size - 1, (1, 7), generator=generator)
    return model, Inputs({"target": target, "source": ids}, tuple("1234567"), names, target)


def test_places_of_layers_are_read_as_they_are_written() -> None:
    for layers in ([0], [0, 1, 2], [0, 2, 4, 6], [1, 3], [0, 1, 2, 5, 7, 8], [3, 4], [2, 5, 8]):
        assert labelled(label(layers)) == layers


@every
@torch.no_grad()
def test_every_station_is_what_the_pass_has_at_the_position(names: tuple[str, ...]) -> None:
    for name in names:
        with case(name):
            model, inputs = a_pass(name)
            stations = list(way(model, inputs, POSITION, SOURCE))
            trace = Tracer(model, inputs).record("*").run()
            inspection, scene = Inspection(trace), draw(cost_report(model.spec))
            assert {one.box for one in stations} <= {item.id for item in (*scene.boxes, *scene.containers)}
            assert all(one.values.numel() for one in stations)
            for one in stations:
                if one.name == "logits":
                    logits = inspection.tensors()["logits"]
                    assert torch.equal(one.values, logits[0, POSITION] if logits.dim() == 3 else logits[0])
                elif ".weights" in one.name and one.values.dim() == 2 and not name.startswith("megabyte"):
                    same_weights(one, inspection)
                elif ".state." in one.name:
                    same_state(one, inspection)
                elif one.name in trace and not name.startswith("megabyte"):
                    place = SOURCE if is_of_source(one.name, inputs, trace) else POSITION
                    assert torch.equal(one.values, at(trace[one.name], place).float()), one.name
            followed(stations)


def is_of_source(name: str, inputs: Inputs, trace: Trace) -> bool:
    """Whether it has the positions of a source."""
    own = name.startswith(("encoder.", "source_embedding")) or ".cross.k" in name or ".cross.v" in name
    return bool(inputs.source_tokens) and (own or f"{name}:2" in trace)


def at(x: torch.Tensor, place: int) -> torch.Tensor:
    """Vectors, heads or rows of a router at a position."""
    return {2: lambda: x[place], 3: lambda: x[0, place], 4: lambda: x[0, :, place]}[x.dim()]()


def same_weights(one: Station, inspection: Inspection) -> None:
    place = SOURCE if one.name.startswith("encoder.") else POSITION
    for head, weights in enumerate(one.values):
        view: Any = inspection.attention(one.name.removesuffix(".weights"), head)
        allowed = ~view.masked[place].isneginf()
        assert torch.equal(weights.isnan(), ~allowed) and torch.equal(weights[allowed], view.weights[place, allowed])


def same_state(one: Station, inspection: Inspection) -> None:
    path, _, name = one.name.partition(".state.")
    place = SOURCE if one.name.startswith("encoder.") else POSITION
    norms = {series.name: series.values for series in inspection.recurrent().series if series.path == path}
    torch.testing.assert_close(one.values.norm(), norms[f"norm of {name}"][place])


def followed(stations: list[Station]) -> None:
    """What is added to the stream in a layer is the sum's difference: all stations are of one position."""
    order = [one.layer for one in stations if one.layer is not None and not one.box.startswith("encoder.")]
    parts = ((one, *one.box.rpartition("blocks.")[::2]) for one in stations)
    by_name = {(rest.partition(".")[2], one.layer, prefix): one for one, prefix, rest in parts}
    for (box, layer, prefix), one in by_name.items():
        before = "cross_sum" if ("cross_sum", layer, prefix) in by_name else "mixer_sum"
        first, down = by_name.get((before, layer, prefix)), by_name.get(("feedforward.down", layer, prefix))
        behind = {("feedforward_post_norm", layer, prefix), ("feedforward.gated", layer, prefix)}
        is_plain = not behind & by_name.keys() and ("mixer_norm", layer, prefix) in by_name
        if box == "feedforward_sum" and first and down and is_plain and one.name.endswith(f"blocks.{layer}.out"):
            torch.testing.assert_close(one.values, first.values + down.values)
    assert order == sorted(order) or any("model." in one.box for one in stations)  # of two stacks one after the other


@torch.no_grad()
def test_the_way_ends_in_the_logits_of_its_position() -> None:
    for name in ("llama-tiny", "megabyte-tiny", "t5-tiny", "mamba-tiny"):
        with case(name):
            model, inputs = a_pass(name)
            stations = {one.name: one.values for one in way(model, inputs, POSITION)}
            last = [values for key, values in stations.items() if key.endswith("final_norm.out")][-1]
            table = model.token_table if name == "megabyte-tiny" else model.embedding.token.weight  # type: ignore[union-attr]
            torch.testing.assert_close(model.lm_head(last[None], table)[0], stations["logits"])  # type: ignore[union-attr, misc, operator]
            other = {one.name: one.values for one in way(model, inputs, POSITION - 1)}
            assert not torch.equal(other["logits"], stations["logits"])


def test_gates_of_an_lstm_are_stations() -> None:
    model, inputs = a_pass("lstm-tiny")
    gates = {one.box.rpartition(".")[2]: one.values for one in way(model, inputs, POSITION) if one.layer == 1}
    series = {one.name: one.values for one in Inspection(Tracer(model, inputs).run()).recurrent(1).series}
    for box, name in (("i", "input gate"), ("f", "forget gate"), ("o", "output gate")):
        torch.testing.assert_close(gates[box].mean(), series[name][POSITION])


@pytest.mark.slow  # all roles are registered anew
@pytest.mark.usefixtures("registries_as_before")
def test_a_part_from_outside_has_its_stations() -> None:
    """Boxes are found by the names of modules: its diagram says nothing of activations."""
    model = randomize(build(linear_attention())).eval()
    ids = torch.tensor([[1, 2, 3]])
    names = {one.name for one in way(model, Inputs({"tokens": ids}, ("1", "2", "3"), ids=ids), 1)}
    assert {"blocks.0.mixer.out", "blocks.0.feedforward.hidden", "blocks.0.out", "logits"} <= names


def test_a_position_that_is_none_is_refused() -> None:
    model, inputs = a_pass("llama-tiny")
    with pytest.raises(SpecError, match="position: 9 is out of range; use 0 to 8"):
        next(way(model, inputs, 9))
