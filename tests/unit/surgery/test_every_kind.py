"""Transplants of every kind of mixer and feed-forward part: to itself, to a wider model, and to every other kind."""

from functools import cache
from typing import Any

import pytest
import torch

from archetype.checking.examples import examples
from archetype.checking.kinds import all_kinds
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import Ledger, Start
from archetype.nn.transfer import Cuts
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.spec.edit import assign
from archetype.surgery.layers import origins
from archetype.surgery.operation import fill
from archetype.surgery.proof import Proof, compare
from tests.helpers.examples import every
from tests.helpers.transplants import check_said
from tests.helpers.weights import randomize

KINDS = {
    f"{role.role_name()} {kind.model_fields['kind'].default}": (role, kind)
    for role, kind in all_kinds()
    if role in (Mixer, FeedForward)
}
EXAMPLES = {f"{name}, {one.name}": one.model for name, kind in KINDS.items() for one in examples(*kind)}
DEFAULTS = {name: model for name, model in EXAMPLES.items() if name.endswith(", defaults")}
PAIRS = [
    pytest.param(old, new)
    for old in DEFAULTS
    for new in DEFAULTS
    if old != new and old.split()[0] == new.split()[0] and EXAMPLES[old].kind == EXAMPLES[new].kind
]
TOKENS = [torch.randint(31, (1, 14), generator=torch.Generator().manual_seed(1))]
# kinds whose heads or channels follow the width, so that a norm, a scale or a rotation sees other features
FOLLOWS_WIDTH = (
    "linear_attention",
    "mlstm",
    "rwkv7",
    "ngram_memory",
    "per_layer_input",
    "disentangled_attention",
    "mixer together",
)


@cache
def donor_of(name: str) -> Any:
    return randomize(build(EXAMPLES[name], dtype=torch.float64))


def transplanted(donor: Any, spec: ModelSpec) -> tuple[Any, Ledger, Proof | None]:
    """The new model, what is promised, and what is measured; never more than what is promised."""
    model, ledger = fill(donor, spec, Cuts())
    check_said(donor, model, ledger)
    if not (spec.continues_text and donor.spec.continues_text):
        return model, ledger, None
    proof = compare(donor, model, TOKENS, origins(donor.spec.stacks[0], spec.stacks[0]))  # type: ignore[arg-type]
    assert proof.start <= ledger.start, (proof.difference, ledger.starts)
    return model, ledger, proof


@pytest.mark.parametrize("name", every(12, EXAMPLES))
def test_a_part_takes_over_everything_from_itself(name: str) -> None:
    donor = donor_of(name)
    model, ledger, _ = transplanted(donor, donor.spec)
    assert ledger.start == Start.SAME, ledger.starts
    assert {taken.how for taken in ledger.tensors.values()} == {"kept"}
    state = donor.state_dict()
    assert all(torch.equal(tensor, state[path]) for path, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", every(3, DEFAULTS))
def test_a_part_of_a_wider_model_starts_equal_or_says_why(name: str) -> None:
    """New features are zero in the stream and RMS norms are rescaled. Attention has heads of the same size."""
    old: Any = DEFAULTS[name]
    attention = [layer for layer, block in enumerate(old.layers) if block.mixer.dump()["kind"] == "attention"]
    sizes = [f"layers[{layer}].mixer.head_dim=6" for layer in attention]
    old = assign(old, sizes)
    donor: Any = randomize(build(old, dtype=torch.float64))
    norms = ["layers[*].wiring.norm.eps=5e-6", "final_norm.eps=5e-6"]
    _, ledger, proof = transplanted(donor, assign(old, ["d_model=48", *norms]))
    reasons = [why for start, why in ledger.starts.values() if start == Start.CHANGED]
    assert all(reasons)
    if not any(kind in name for kind in FOLLOWS_WIDTH) and proof is not None:
        assert ledger.start == Start.ROUNDED and proof.difference < 1e-12, reasons
        _, ledger, proof = transplanted(donor, assign(old, ["d_model=48"]))  # the control: norms of another epsilon
        assert ledger.start == Start.CHANGED and proof is not None and proof.difference > 1e-12


@pytest.mark.parametrize("name", every(12, EXAMPLES))
def test_the_gains_of_a_norm_are_folded_into_every_part(name: str) -> None:
    donor = donor_of(name)
    _, ledger, proof = transplanted(donor, assign(donor.spec, ["layers[*].wiring.norm.weight=false"]))
    normalizes = ("ngram_memory", ", norm=", ", norms=", "input_norm=")  # its input once more
    if not any(word in name for word in normalizes) and proof is not None:
        assert ledger.start == Start.ROUNDED


@pytest.mark.parametrize(("old", "new"), every(29, PAIRS))
def test_any_kind_becomes_any_other(old: str, new: str) -> None:
    _, ledger, _ = transplanted(donor_of(old), EXAMPLES[new])
    assert all(why for start, why in ledger.starts.values() if start == Start.CHANGED)
