"""Values of another width, with a factor, a norm or no projection, against attention without these fields."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from archetype import spec
from archetype.models.block.module import build_block
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.spec.errors import explain
from tests.helpers.weights import distance, randomize

D, T, EXACT = 24, 7, 1e-6
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "window": {"pattern": {"kind": "window", "size": 2}},
    "pieces": {"pattern": {"kind": "fixed", "stride": 3, "num_summary": 1}},
    "gate": {"gate": {}, "qk_norm": {"kind": "rms"}, "position": {"kind": "rotary"}},
}


def build(**fields: Any) -> Attention:
    return randomize(Attention(spec.Attention(**({"num_heads": 4, "num_kv_heads": 2} | fields)), Place(D)))


def run(part: Attention) -> Tensor:
    with torch.no_grad():
        return part(X, ForwardContext.of(X))


def copied(part: Attention, plain: Attention) -> None:
    part.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_defaults_written_out_change_no_bit(form: dict[str, Any]) -> None:
    plain, written = build(**form), build(v_head_dim=6, value_scale=1.0, value_norm={"kind": "none"}, **form)
    copied(written, plain)
    assert torch.equal(run(written), run(plain))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_factor_of_values_is_a_factor_of_their_matrix(form: dict[str, Any]) -> None:
    plain, scaled = build(**form), build(value_scale=0.7, **form)
    copied(scaled, plain)
    assert distance(run(scaled), run(plain)) > 0.1
    plain.v.weight.data *= 0.7
    assert distance(run(scaled), run(plain)) < EXACT


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_keys_as_values_are_a_projection_to_values_that_equals_that_to_keys(form: dict[str, Any]) -> None:
    plain, shared = build(**form), build(keys_as_values=True, **form)
    weights = plain.state_dict()
    del weights["v.weight"]
    shared.load_state_dict(weights)
    assert distance(run(shared), run(plain)) > 0.1
    plain.v.weight.data.copy_(plain.k.weight)
    assert distance(run(shared), run(plain)) < EXACT


@pytest.mark.parametrize("width", [2, 11])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_values_of_another_width_are_cut_from_wider_ones(width: int, form: dict[str, Any]) -> None:
    """A narrow value is a wide one whose further features no output reads."""
    wide = build(head_dim=12, v_head_dim=12, **form)
    narrow = build(head_dim=12, v_head_dim=width, **form)
    weights = wide.state_dict()
    for name, axis in (("v.weight", 0), ("o.weight", 1), ("gate.weight", 0)):
        if name in weights:
            by_head = weights[name].unflatten(axis, (-1, 12)).narrow(axis + 1, 0, width)
            weights[name] = by_head.flatten(axis, axis + 1)
    narrow.load_state_dict(weights)
    wide.o.weight.data.unflatten(1, (-1, 12))[:, :, width:] = 0.0
    assert distance(run(narrow), run(wide)) < EXACT


def test_a_norm_of_values_is_applied_to_each_head_and_not_to_keys() -> None:
    normed, plain = build(value_norm={"kind": "rms", "weight": False}), build()
    copied(normed, plain)
    (keys, values), (plain_keys, plain_values) = (part.keys_and_values(X) for part in (normed, plain))
    assert torch.equal(keys, plain_keys)
    assert distance(values, plain_values / plain_values.square().mean(-1, keepdim=True).add(1e-5).sqrt()) < EXACT


@torch.no_grad()
def test_an_output_scale_multiplies_what_leaves_the_block() -> None:
    block = spec.Block(wiring=spec.SandwichNorm(norm=spec.RMSNorm()), mixer=spec.Attention(num_heads=4))
    plain = randomize(build_block(block, Place(D)))
    scaled = build_block(block.replace(output_scale=True), Place(D)).eval()
    scaled.load_state_dict(plain.state_dict() | {"output_scale": torch.tensor([0.25])})
    y, expected = (part(X, ForwardContext.of(X)) for part in (scaled, plain))
    assert torch.equal(y, expected * 0.25)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"keys_as_values": True, "bias": True}, "bias.v"),
        ({"keys_as_values": True, "head_dim": 6, "v_head_dim": 5}, "v_head_dim"),
        (
            {"keys_as_values": True, "pattern": {"kind": "global_window", "size": 2, "global_projections": True}},
            "keys_as_values",
        ),
    ],
)
def test_what_no_value_can_be_is_refused(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as error:
        spec.Attention(num_heads=4, **fields)
    assert explain(error.value, every=False).place == place


def test_a_reader_of_keys_needs_values_of_the_same_form() -> None:
    source, reader = (spec.Attention(num_heads=4, v_head_dim=width) for width in (6, 5))
    with pytest.raises(ValueError, match="v_head_dim differs"):
        reader.replace(keys_from=0).check_source(source, D)
    reader.replace(keys_from=0, v_head_dim=None).check_source(source, D)  # the same width, by default
