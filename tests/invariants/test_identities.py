"""Different specifications of the same function: equal weights give equal logits, with a state and without.

Those of single parts stand with the parts: absorbed and plain latent attention (`test_latent.py`), one expert and its
dense block (`test_experts.py`), a pattern and its rule (`test_attention.py`, `test_attend.py`), the scan and the
recurrence (`test_mamba.py`), rotations by distance alone (`test_position.py`), shared and repeated key heads
(`test_attention.py`). An encoder without positions is permutation-equivariant: `test_encoders.py`.
"""

from typing import Any

import pytest
import torch
from torch import nn

from archetype import spec
from archetype.models.build import build
from tests.helpers.combinations import EXACT, GATED, LLAMA3, combined, text
from tests.helpers.passes import forward_step
from tests.helpers.strategies import CONTEXT
from tests.helpers.weights import distance, randomize

BASE = combined({"position": "rotary"})


def attending(**changes: Any) -> spec.Decoder:
    """The base with another attention."""
    block = BASE.layers[0]
    return BASE.replace(layers=(block.replace(mixer=block.mixer.replace(**changes)),))


def wired(wiring: spec.Wiring, **changes: Any) -> spec.Decoder:
    """The base with another wiring."""
    return BASE.replace(layers=(BASE.layers[0].replace(wiring=wiring, **changes),))


def scaled(scaling: spec.RotaryScaling) -> spec.Decoder:
    """The base with other frequencies."""
    return attending(position=spec.Rotary(scaling=scaling))


def experts(num_experts: int, **changes: Any) -> spec.Decoder:
    """The base with so many experts, all of which every token is sent to."""
    part = spec.MixtureOfExperts(num_experts=num_experts, experts_per_token=num_experts, expert=GATED, **changes)
    return BASE.replace(layers=(BASE.layers[0].replace(feedforward=part),))


NO_NORM = spec.NoNorm()
UNWIRED = wired(spec.PreNorm(norm=NO_NORM))
SAME = {
    "as many key heads as heads": (attending(num_kv_heads=4), attending(num_kv_heads=None)),
    "a scale that is said": (BASE, attending(scale=0.5)),  # one over the root of 4
    "a window as long as the context": (BASE, attending(pattern=spec.Window(size=CONTEXT))),
    "a longer window": (BASE, attending(pattern=spec.Window(size=100))),
    "a chunk as long as the context": (BASE, attending(pattern=spec.Chunked(size=CONTEXT))),
    "a stride as long as the context": (BASE, attending(pattern=spec.Strided(stride=CONTEXT))),
    "a stride of one": (BASE, attending(pattern=spec.Strided(stride=1))),
    "one block": (BASE, attending(pattern=spec.Fixed(stride=CONTEXT, num_summary=1))),
    "blocks that are all summary": (BASE, attending(pattern=spec.Fixed(stride=4, num_summary=4))),
    "all tokens global": (BASE, attending(pattern=spec.GlobalWindow(size=1, num_global_tokens=CONTEXT))),
    "a factor of one": (BASE, scaled(spec.LinearScaling(factor=1.0))),
    "yarn by one": (BASE, scaled(spec.YarnScaling(factor=1.0, original_context_length=8))),
    "llama 3.1 by one": (BASE, scaled(LLAMA3.replace(factor=1.0))),
    "a text that needs no stretching": (BASE, scaled(spec.DynamicScaling(factor=4.0, original_context_length=16))),
    "all of a head turned": (BASE, attending(position=spec.Rotary(dim=4))),
    "sandwich without norms": (UNWIRED, wired(spec.SandwichNorm(norm=NO_NORM))),
    "after and before without norms": (UNWIRED, wired(spec.PostNorm(norm=NO_NORM))),
    "a shared norm that is none": (
        wired(spec.ParallelResidual(norm=NO_NORM)), wired(spec.ParallelResidual(norm=NO_NORM, shared_norm=True))
    ),
    "experts in one group": (experts(3), experts(3, groups=spec.ExpertGroups(num_groups=1, groups_per_token=1))),
    "all experts, weights of sum one": (experts(3), experts(3, router=spec.SoftmaxRouter(renormalize=False))),
}  # fmt: skip


def same_weights(one: spec.Decoder, other: spec.Decoder) -> tuple[nn.Module, nn.Module]:
    """Both models, the second with the first's tensors."""
    first, second = randomize(build(one)), build(other).eval()
    second.load_state_dict(first.state_dict())
    return first.requires_grad_(False), second.requires_grad_(False)


def agree(first: nn.Module, second: nn.Module) -> None:
    tokens = text(2, CONTEXT)
    expected = first(tokens).logits
    assert distance(second(tokens).logits, expected) < EXACT
    state = second.new_state(2)
    for piece in tokens.split([5, 1, 1, 9], dim=1):
        start = int(state.lengths[0])
        logits, state = forward_step(second, piece, state)
        assert distance(logits, expected[:, start : start + piece.shape[1]]) < EXACT


@pytest.mark.parametrize("name", SAME)
def test_two_specifications_of_one_function(name: str) -> None:
    one, other = SAME[name]
    assert one != other
    agree(*same_weights(one, other))


@pytest.mark.parametrize("router", [spec.SoftmaxRouter(), spec.SigmoidRouter(renormalize=True)])
def test_one_expert_is_dense(router: spec.Router) -> None:
    """Its weight is 1, whatever the router says."""
    many, dense = randomize(build(experts(1, router=router))), build(BASE).eval()
    held = {
        name.replace(".experts.", "."): tensor[0] if ".experts." in name else tensor
        for name, tensor in many.state_dict().items()
        if "router" not in name
    }
    names = {name if not name.endswith(("gate", "up", "down")) else f"{name}.weight": t for name, t in held.items()}
    dense.load_state_dict(names)
    agree(many.requires_grad_(False), dense.requires_grad_(False))


def test_an_offset_is_a_weight_less_by_one() -> None:
    plain, offset = build(BASE), build(combined({"position": "rotary", "norm": "offset"}))
    held = randomize(plain).state_dict()
    offset.eval().load_state_dict({name: t - 1 if "norm" in name else t for name, t in held.items()})
    agree(plain.requires_grad_(False), offset.requires_grad_(False))


@torch.no_grad()
def test_shared_key_heads_are_copies() -> None:
    shared, whole = same_weights_but_keys()
    agree(shared, whole)


def same_weights_but_keys() -> tuple[nn.Module, nn.Module]:
    """Two heads of keys for four of queries, and each of the two written out twice."""
    first, second = randomize(build(attending(num_kv_heads=2))), build(attending(num_kv_heads=4)).eval()
    held = first.state_dict()
    for name in held:
        if ".mixer.k." in name or ".mixer.v." in name:
            held[name] = held[name].unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1)
    second.load_state_dict(held)
    return first, second
