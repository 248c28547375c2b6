"""Tensors that are computed from the donor's, or begin at zero, and what the report says of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.api.transplanting import transplant
from archetype.errors import CheckpointError, SpecError
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import Ledger, Start
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.operation import fill
from archetype.surgery.proof import compare
from tests.helpers.cases import case
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.specs import LATENT, attending, block, decoder, encoder, experts, mixed, pair
from tests.helpers.transplants import check_said
from tests.helpers.weights import distance, randomize

ROWS = [torch.randint(31, (1, 20), generator=torch.Generator().manual_seed(1))]
PRE = {"kind": "pre_norm", "norm": {"kind": "rms", "unit_offset": True}}
DELTA = '{"kind": "gated_delta_net", "num_heads": 4, "head_dim": 4, "v_head_dim": 4}'


def transplanted(old: ModelSpec, changes: Sequence[str], prepare: Any = None) -> tuple[Any, Any, Ledger]:
    donor = randomize(build(old, dtype=torch.float64))
    if prepare is not None:
        with torch.no_grad():
            prepare(donor)
    model, ledger = fill(donor, assign(old, list(changes)), Cuts())
    check_said(donor, model, ledger)
    return donor, model, ledger


COMPUTED: dict[str, tuple[ModelSpec, str, str, str, str]] = {
    "a factor of values": (attending(value_scale=3.0), "layers[*].mixer.value_scale=1.5", "mixer.v.weight", "merged",
                           "times 2, the ratio of value_scale"),
    "gains stored in another way": (
        decoder(block(wiring=PRE)), "layers[*].wiring.norm.unit_offset=false", "mixer_norm.weight", "merged",
        "the donor's gains, stored as they are"),
    "a gate": (attending(), "layers[*].mixer.gate={bias: true}", "mixer.o.weight", "merged",
               "divided by the gate's first value, 0.5"),
    "a bias of the gate": (attending(), "layers[*].mixer.gate={bias: true}", "mixer.gate_bias", "new", "all 0"),
    "scores of latent attention": (
        mixed(**LATENT), "layers[*].mixer.scale=0.5", "mixer.q.weight", "merged",
        "times 0.632456, the ratio of the scales of scores"),
    "new features of keys": (attending(head_dim=4), "layers[*].mixer.head_dim=6", "mixer.k.weight", "grown",
                             "2 new P, zero"),
    "a convolution that the donor lacks": (
        attending(head_dim=4), f"layers[*].mixer={DELTA}", "mixer.conv.weight", "new", "the newest position alone"),
    "a shared expert beside others": (
        decoder(block(feedforward=experts())), "layers[*].feedforward.shared={kind: gated, d_ff: 9, activation: silu}",
        "feedforward.shared.down.weight", "new", "all 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_a_tensor_that_is_computed_is_not_called_kept(name: str) -> None:
    old, change, tensor, how, note = COMPUTED[name]
    donor, model, ledger = transplanted(old, [change])
    taken = ledger.tensors[f"blocks.0.{tensor}"]
    assert (taken.how, taken.note) == (how, note)
    assert taken.sources == (() if how == "new" else (f"blocks.0.{tensor}",))
    assert compare(donor, model, ROWS, range(len(model.blocks))).start <= ledger.start


def test_a_shared_expert_is_added_without_a_change_and_learns() -> None:
    old = decoder(block(feedforward=experts()))
    shared = "layers[*].feedforward.shared={kind: gated, d_ff: 9, activation: silu, bias: true}"
    donor, model, ledger = transplanted(old, [shared, "layers[*].feedforward.shared_gate=true"])
    assert ledger.start == compare(donor, model, ROWS, [0]).start == Start.SAME
    model(ROWS[0]).logits.square().sum().backward()
    assert model.blocks[0].feedforward.shared.down.weight.grad.any()
    _, _, ledger = transplanted(assign(old, [shared]), ["layers[*].feedforward.shared=null"])
    assert ledger.start is Start.CHANGED


def equal_layers(model: Any) -> None:
    model.blocks[1].load_state_dict(model.blocks[0].state_dict(), strict=False)


def silent_and_equal(model: Any) -> None:
    equal_layers(model)
    model.blocks[0].mixer.o.weight.zero_()
    model.blocks[0].feedforward.down.weight.zero_()


WINDOW = block(mixer={"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "pattern": {"kind": "window", "size": 3}})
PLAIN = block(mixer={"kind": "attention", "num_heads": 4, "num_kv_heads": 2})
BIASED = block(mixer=PLAIN["mixer"] | {"bias": True})
CLIPPED = block(mixer=PLAIN["mixer"] | {"clip_qkv": 0.1})
TABLE = block(mixer=PLAIN["mixer"] | {"value_embedding": {}})
READS = "layers[1].mixer.keys_from=0"


def test_gains_of_the_final_norm_are_folded_into_the_layer_before_the_logits() -> None:
    old = decoder(block(), head={"kind": "language_model", "transform": {}})
    donor, model, ledger = transplanted(old, ["final_norm.weight=false"])
    taken = ledger.tensors["lm_head.dense.weight"]
    assert (taken.how, taken.note) == ("merged", "times the gains of the preceding norm")
    assert ledger.start == Start.ROUNDED
    assert compare(donor, model, ROWS, [0]).start <= Start.ROUNDED


def test_a_table_of_values_gets_rows_for_new_tokens() -> None:
    _, model, ledger = transplanted(decoder(TABLE), ["vocab_size=40"])
    taken = ledger.tensors["blocks.0.mixer.value_embedding.weight"]
    assert taken.how == "grown"
    assert model.blocks[0].mixer.value_embedding.weight.shape[0] == 40


def test_layers_with_equal_tensors_may_still_differ() -> None:
    """Equal tensors of another pattern, and keys that are clipped, biased or added to."""
    cases: dict[str, tuple[ModelSpec, list[str], Any]] = {
        "pattern": (decoder(PLAIN, WINDOW), ["layers[1].mixer.pattern=full", "layers[1].weights_of=0"], equal_layers),
        "clipped keys": (decoder(CLIPPED, PLAIN), [READS], silent_and_equal),
        "biased keys": (decoder(BIASED, PLAIN), [READS], silent_and_equal),
        "a table of values": (decoder(TABLE, PLAIN), [READS], silent_and_equal),
        "own biases": (decoder(PLAIN, BIASED), ["layers[1].mixer.bias={q: true, o: true}", READS], silent_and_equal),
    }
    for name, (old, changes, prepare) in cases.items():
        with case(name):
            donor, model, ledger = transplanted(old, changes, prepare)
            assert compare(donor, model, ROWS, [0, 1]).start is Start.CHANGED
            assert ledger.start is Start.CHANGED
    donor, model, ledger = transplanted(decoder(PLAIN, PLAIN), [READS], silent_and_equal)  # the control
    assert compare(donor, model, ROWS, [0, 1]).start is ledger.start is Start.SAME


def test_gains_of_zero_do_not_divide_a_bias() -> None:
    wiring = {"kind": "pre_norm", "norm": {"kind": "layer"}}

    def prepare(model: Any) -> None:
        model.blocks[0].mixer_norm.weight[2] = 0.0

    donor, model, ledger = transplanted(decoder(block(wiring=wiring)), ["layers[*].wiring.norm.weight=false"], prepare)
    assert ledger.start is Start.CHANGED
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert compare(donor, model, ROWS, [0]).start is Start.CHANGED


def test_models_that_are_not_causal_keep_their_heads_and_tables() -> None:
    masked = {"kind": "masked_language_model", "norm": {"kind": "layer"}, "tied": False}
    classes = {"kind": "classification", "num_classes": 3, "transform": {"activation": "gelu"}}
    two = {"shared": False, "position": {"kind": "learned"}}
    for name, old, changes, grown in (
        ("masked", encoder(head=masked), ["vocab_size=40"], "lm_head.weight"),
        ("tied", encoder(head=masked | {"tied": True}), ["vocab_size=40"], "lm_head.bias"),
        ("classes", encoder(head=classes), ["head.num_classes=5"], "classifier.weight"),
        ("two tables", pair(embedding=two, source_vocab_size=17), ["source_vocab_size=20"],
         "source_embedding.token.weight"),
    ):  # fmt: skip
        with case(name):
            donor, model, ledger = transplanted(old, changes)
            assert ledger.tensors[grown].how == "grown"
            before = donor.state_dict()[grown]
            assert torch.equal(model.state_dict()[grown][: len(before)], before)
            inputs = example_inputs(old)
            with torch.no_grad():
                logits = [logits_or_hidden(each(**inputs)) for each in (donor, model)]
            assert distance(logits[1][..., : logits[0].shape[-1]], logits[0]) < 1e-12
            assert (ledger.start is Start.CHANGED) == (name == "classes")


def test_a_donor_with_numbers_that_are_none_is_refused() -> None:
    spec = attending()
    for value, message in (
        (
            float("nan"),
            "donor: blocks.1.mixer.q.weight: has entries that are not numbers (NaN); use another checkpoint",
        ),
        (float("inf"), "logits: the first NaN or infinite number is computed by blocks.1.mixer.q; check the weights"),
    ):
        model: Any = randomize(build(spec))
        with torch.no_grad():
            model.blocks[1].mixer.q.weight[3, 2] = value
        with pytest.raises(CheckpointError) as refused:
            transplant(LanguageModel(spec, model), assign(spec, ["num_layers=4"]))
        assert str(refused.value).startswith(message)


def test_a_list_of_layers_does_not_say_of_which_side() -> None:
    spec = pair()
    with pytest.raises(SpecError, match="--layers: the model has 2 stacks of layers, and this names those of one; lea"):
        transplant(LanguageModel(spec, randomize(build(spec))), assign(spec, ["decoder.num_layers=3"]), layers=[0, 1])
