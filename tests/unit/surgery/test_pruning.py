"""Layers that are dropped, and heads, features and experts that are cut or merged, by what a text says of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype.api.language_model import LanguageModel
from archetype.api.transplanting import changed_spec, rows_of, transplant
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import Start
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.layers import kept_layers
from archetype.surgery.measure import influences, ranks_of
from archetype.surgery.operation import fill
from archetype.surgery.proof import compare
from tests.helpers.specs import ATTENTION, attending, block, decoder, encoder, experts
from tests.helpers.weights import randomize

ROWS = [torch.randint(31, (1, 20), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
Model = Any


def random_model(spec: ModelSpec) -> Model:
    return randomize(build(spec))


def distance(donor: Model, new: ModelSpec, cuts: Cuts, layers: Sequence[int] = (0, 1)) -> float:
    """KL divergence of a transplant, in nats per token."""
    model, ledger = fill(donor, new, cuts)
    assert ledger.start is Start.CHANGED
    return compare(donor, model, ROWS, layers).divergence


@torch.no_grad()
def test_the_layers_with_least_influence_are_dropped() -> None:
    donor = random_model(decoder(*[block()] * 5))
    for layer in (1, 3):  # which hardly turn the stream
        donor.blocks[layer].mixer.o.weight.mul_(0.01)
        donor.blocks[layer].feedforward.down.weight.mul_(0.01)
    values = influences(donor, ROWS)
    x = donor.embedding(ROWS[0], donor.context(ROWS[0], None, None, None))
    y = donor.blocks[0](x, donor.context(ROWS[0], None, None, None))
    first = 1 - torch.cosine_similarity(x, y, dim=-1)
    assert influences(donor, ROWS[:1])[0] == pytest.approx(float(first.mean()), rel=1e-4)
    assert sorted(range(5), key=lambda layer: values[layer])[:2] in ([1, 3], [3, 1])
    new = assign(donor.spec, ["num_layers=3"])
    stacks = donor.spec.stacks[0], new.stacks[0]
    ways = {way: kept_layers(way, *stacks, lambda: values, seed=0) for way in ("influence", "first", "random")}
    assert ways["influence"] == [0, 2, 4]
    assert ways["first"] == [0, 1, 2]
    assert ways["random"] == sorted(set(ways["random"]))
    assert ways["random"] not in ([0, 2, 4], [0, 1, 2])
    lost = {way: distance(donor, new, Cuts(layers), layers) for way, layers in ways.items()}
    assert lost["influence"] < 0.01 * min(lost["first"], lost["random"])


def test_a_layer_continues_one_of_its_form() -> None:
    other = block(mixer={"kind": "short_convolution"})
    old, new = decoder(block(), other, block(), other), decoder(other, block())
    stacks = old.stacks[0], new.stacks[0]
    assert kept_layers("influence", *stacks, lambda: [9.0, 1.0, 2.0, 8.0], seed=0) == [1, 2]
    only = decoder(other, other, other).stacks[0]  # more than the donor has
    assert kept_layers("influence", stacks[0], only, lambda: [9.0, 1.0, 2.0, 8.0], seed=0) == [0, 2, 3]


BIASED = {"kind": "softmax", "renormalize": True, "bias": True}
CUTS: dict[str, tuple[ModelSpec, list[str]]] = {
    "heads": (attending(num_kv_heads=4), ["mixer.head_dim=4", "mixer.num_heads=2", "mixer.num_kv_heads=2"]),
    "heads of each group": (attending(), ["mixer.head_dim=4", "mixer.num_heads=2"]),
    "hidden features": (attending(), ["feedforward.d_ff=22"]),
    **{
        name: (decoder(*[block(feedforward=experts(router=BIASED, **further))] * 2), ["feedforward.num_experts=4"])
        for name, further in (("experts", {}), ("experts before further ones", {"always": 1}), ("idle", {"idle": 2}))
    },
}


@torch.no_grad()
def weaken(donor: Model, name: str) -> tuple[str, Tensor]:
    """Make entries weak that are not the last ones; return a matrix that is cut, and what is left of it."""
    for layer in donor.blocks:
        match name:
            case "heads":
                layer.mixer.v.weight[:8] *= 1e-3
                name_of_matrix, rest = "mixer.q.weight", layer.mixer.q.weight[8:]
            case "heads of each group":
                layer.mixer.o.weight.view(16, 2, 2, 4)[:, :, 0] *= 1e-3
                name_of_matrix, rest = "mixer.q.weight", layer.mixer.q.weight.view(2, 2, 4, 16)[:, 1].flatten(0, 1)
            case "hidden features":
                layer.feedforward.up.weight[:22] *= 1e-3
                name_of_matrix, rest = "feedforward.down.weight", layer.feedforward.down.weight[:, 22:]
            case _:
                layer.feedforward.experts.down[:2] *= 1e-3
                layer.feedforward.router.bias.zero_()[:2] = -3.0
                name_of_matrix, rest = "feedforward.experts.up", layer.feedforward.experts.up[2:]
    return f"blocks.1.{name_of_matrix}", rest


@pytest.mark.parametrize("name", CUTS)
def test_entries_that_do_least_are_cut(name: str) -> None:
    old, changes = CUTS[name]
    new, donor = assign(old, [f"layers[*].{change}" for change in changes]), random_model(old)
    tensor, rest = weaken(donor, name)
    lost = {}
    for way in ("activation", "first", "random"):
        model, ledger = fill(donor, new, Cuts(ranks=ranks_of(donor, ROWS, way, seed=1)))
        assert ledger.start is Start.CHANGED
        assert ledger.tensors[tensor].how == "cut"
        assert torch.equal(model.state_dict()[tensor], rest) is (way == "activation")
        lost[way] = compare(donor, model, ROWS, (0, 1)).divergence
    assert lost["activation"] < 0.2 * min(lost["first"], lost["random"]), lost


@torch.no_grad()
def test_a_layer_that_reads_keys_keeps_the_groups_of_the_layer_that_it_reads() -> None:
    mixer = ATTENTION | {"head_dim": 4}
    donor = random_model(decoder(block(mixer=mixer), block(mixer=mixer | {"keys_from": 0})))
    heads: Any = {"first": donor.blocks[0].mixer.o.weight, "second": donor.blocks[1].mixer.o.weight}
    heads["first"][:, :8] *= 1e-3  # the groups that add least are not the same
    heads["second"][:, 8:] *= 1e-1
    new = assign(donor.spec, [f"layers[*].mixer.{size}" for size in ("num_heads=2", "num_kv_heads=1")])
    model, _ = fill(donor, new, Cuts(ranks=ranks_of(donor, ROWS, "activation")))
    assert torch.equal(model.blocks[0].mixer.k.weight, donor.blocks[0].mixer.k.weight[4:])
    assert torch.equal(model.blocks[1].mixer.q.weight, donor.blocks[1].mixer.q.weight[8:])


@torch.no_grad()
def test_features_of_the_whole_model_are_cut_together() -> None:
    donor = random_model(attending(head_dim=4))
    for name, x in donor.named_parameters():  # features 3 to 6 are nearly empty
        if name.endswith(("token.weight", "norm.weight")):
            x[..., 3:7] *= 1e-3
        elif name.endswith(("o.weight", "down.weight")):
            x[3:7] *= 1e-3
    new = assign(donor.spec, ["d_model=12"])
    model, ledger = fill(donor, new, Cuts(ranks=ranks_of(donor, ROWS, "activation")))
    left = [0, 1, 2, *range(7, 16)]
    assert torch.equal(model.embedding.token.weight, donor.embedding.token.weight[:, left])
    assert torch.equal(model.blocks[1].mixer_norm.weight, donor.blocks[1].mixer_norm.weight[left])
    assert torch.equal(model.blocks[0].mixer.o.weight, donor.blocks[0].mixer.o.weight[left])
    assert torch.equal(model.lm_head.weight, donor.lm_head.weight[:, left])
    assert ledger.tensors["final_norm.weight"].note == "12 of 16 N"


@torch.no_grad()
def test_experts_are_merged_with_those_that_are_chosen_like_them() -> None:
    donor = random_model(decoder(block(feedforward=experts(num_experts=4, experts_per_token=1))))
    part = donor.blocks[0].feedforward
    part.router.weight[:2] *= 5
    part.router.weight[2:] = 0.5 * part.router.weight[:2]  # logits like those of experts 0 and 1, and seldom the best
    new = assign(donor.spec, ["layers[*].feedforward.num_experts=2"])
    cuts = Cuts(choices={"experts": "merged"}, ranks=ranks_of(donor, ROWS, "activation"))
    model, ledger = fill(donor, new, cuts)
    counts = ranks_of(donor, ROWS, "activation")("blocks.0.feedforward", "E")
    assert counts is not None
    assert counts[2:].min() > 0
    assert counts[:2].min() > counts[2:].max()
    for index in range(2):
        pair = [index, index + 2]
        shares = counts[pair] / counts[pair].sum()
        for name in ("gate", "up", "down"):
            before = getattr(part.experts, name)[pair]
            merged = (shares[:, None, None] * before).sum(0)
            torch.testing.assert_close(getattr(model.blocks[0].feedforward.experts, name)[index], merged)
        assert torch.equal(model.blocks[0].feedforward.router.weight[index], part.router.weight[index])
    taken = ledger.tensors["blocks.0.feedforward.experts.up"]
    assert taken.how == "merged"
    assert "means of groups of 2, 2" in taken.note
    assert ledger.start is Start.CHANGED


def test_key_heads_are_drawn_anew_as_a_control() -> None:
    donor = random_model(attending(num_kv_heads=4))
    new = assign(donor.spec, ["layers[*].mixer.num_kv_heads=2"])
    model, ledger = fill(donor, new, Cuts(choices={"heads": "random"}))
    before, after = donor.blocks[1].mixer.k.weight.detach(), model.blocks[1].mixer.k.weight.detach()
    assert float(after.std()) == pytest.approx(float(before.std()), rel=0.2)
    other, _ = fill(donor, new, Cuts(choices={"heads": "random"}, seed=1))
    assert not torch.equal(other.blocks[1].mixer.k.weight, after)
    assert not any(torch.equal(row, other) for row in after for other in before)
    assert ledger.tensors["blocks.1.mixer.k.weight"].how == "new"
    assert ledger.tensors["blocks.1.mixer.o.weight"].how == "kept"
    assert ledger.start is Start.CHANGED


def test_the_front_door_measures_and_says_which_layers_are_left() -> None:
    lm = LanguageModel(spec := decoder(*[block()] * 4), random_model(spec))
    new = assign(spec, ["num_layers=2", "layers[*].feedforward.d_ff=20"])
    done = transplant(lm, new, layers="influence", choices={"cut": "magnitude"})
    assert len(done.report.layers) == 2
    assert done.report.record()["layers"] == list(done.report.layers)
    lines = "\n".join(done.report.lines())
    assert "cut: blocks.*.feedforward.down.weight (2): 20 of 44 F" in lines
    assert "the donor's layers" in lines
    first = transplant(lm, new, layers="influence", choices={"cut": "activation"})
    assert transplant(lm, new, layers="influence").report.record() == first.report.record()


def test_layers_that_are_kept_keep_their_windows_and_positions() -> None:
    """As the donor without the other layers, whose repeated layers add nothing either."""
    local = {"pattern": {"kind": "window", "size": 3}, "position": {"kind": "rotary", "theta": 100.0}}
    plain = {"position": {"kind": "rotary"}}
    mixers = [ATTENTION | fields for fields in (local, local, plain) * 2]
    spec = decoder(*[block(mixer=mixer) for mixer in mixers])
    lm = LanguageModel(spec, random_model(spec))
    for layers, changes in (([1, 2, 4], ["num_layers=3"]), ([4, 1], ["num_layers=2"]), ("influence", ["num_layers=2"])):
        done = transplant(lm, changed_spec(lm, changes, None, None)[0], layers=layers, changes=changes)
        continued = done.report.layers
        assert done.model.spec.layers == tuple(spec.layers[layer] for layer in continued)  # type: ignore[attr-defined]
        without = random_model(spec)
        without.blocks = torch.nn.ModuleList([without.blocks[layer] for layer in continued])
        assert torch.equal(done.model.model(ROWS[0]).logits, without(ROWS[0]).logits)
    influence = influences(lm.model, rows_of(lm, spec, None))
    assert list(continued) == sorted(sorted(range(6), key=lambda layer: -influence[layer])[:2])
    deeper = transplant(lm, assign(spec, ["num_layers=12"]), changes=["num_layers=12"]).report
    assert deeper.proof is not None and deeper.proof.start is deeper.ledger.start is Start.SAME


def test_fewer_experts_are_named_by_another_table() -> None:
    donor = random_model(decoder(block(feedforward=experts(router={"kind": "hash"}))))
    new = assign(donor.spec, ["layers[*].feedforward.num_experts=3"])
    model, ledger = fill(donor, new, Cuts())
    assert int(model.blocks[0].feedforward.router.table.max()) == 2
    assert ledger.tensors["blocks.0.feedforward.router.table"].how == "new"
    assert compare(donor, model, ROWS, [0]).start is ledger.start is Start.CHANGED


FEWER_KEYS = "layers[*].mixer.num_kv_heads=1"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no fewer layers": (
        "name=x",
        {"layers": "influence"},
        "--layers: influence drops layers, but the new model has 2 layers",
    ),
    "an unknown way": (
        "num_layers=1",
        {"layers": "best"},
        "--layers: 'best' is not a method; use influence, first or ran",
    ),
    "another number": (
        "num_layers=4",
        {"layers": [0]},
        "--layers: lists 1 layers of the donor, but the new model has 4",
    ),
    "no such layer": ("name=x", {"layers": [0, 2]}, "--layers: the donor has layers 0 to 1; use these numbers"),
    "no choice": ("name=x", {"choices": {"heads": "mean"}}, "--with heads: these changes need no such choice; remove"),
    "another choice": (
        FEWER_KEYS,
        {"choices": {"head": "mean"}},
        "--with head: these changes need no such choice; use h",
    ),
    "an unknown choice": (
        FEWER_KEYS,
        {"choices": {"heads": "a"}},
        "--with heads: 'a' is not a method; use mean, first or ra",
    ),
    "an unknown cut": (
        "name=x",
        {"choices": {"cut": "a"}},
        "--with cut: 'a' is not a method for this model; use activation",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_chosen_is_refused(name: str) -> None:
    change, options, message = REFUSED[name]
    lm = LanguageModel(spec := attending(), random_model(spec))
    with pytest.raises(SpecError) as refused:
        transplant(lm, assign(spec, [change]), **options)
    assert str(refused.value).startswith(message)


def test_a_donor_of_another_kind_is_refused() -> None:
    lm = LanguageModel(spec := attending(), random_model(spec))
    with pytest.raises(SpecError, match="the donor is of kind decoder, but the new model of kind encoder; use a"):
        transplant(lm, encoder())
