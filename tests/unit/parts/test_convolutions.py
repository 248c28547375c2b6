"""Short convolutions inside attention and networks: canon layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.errors import SpecError
from archetype.models.block.module import build_block
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from tests.helpers.specs import ATTENTION, DECODERS, GATED, block, decoder, encoder, experts
from tests.helpers.weights import distance, randomize

D, T = 16, 7
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(31, (2, 13), generator=torch.Generator().manual_seed(1))
CANON = DECODERS["canon"]


def convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """y_t + sum_i w_i y_{t-i}, token by token; the last weight is that of the token itself."""
    y, taps = x.clone(), kernel.shape[2]
    for t in range(x.shape[1]):
        for i in range(min(taps, t + 1)):
            y[:, t] += kernel[:, 0, taps - 1 - i] * x[:, t - i]
    return y


@torch.no_grad()
def test_the_four_places_are_those_of_canon_layers() -> None:
    """A and C behind the norms, B behind the projections of q, k and v, D before the activation."""
    ours: Any = randomize(build_block(CANON.layers[0], Place(D))).eval()
    plain: Any = randomize(build_block(decoder(block()).layers[0], Place(D))).eval()
    plain.load_state_dict(ours.state_dict(), strict=False)
    of = {name: part.convolutions for name, part in (("a", ours.mixer), ("f", ours.feedforward))}

    class Behind(nn.Module):
        def __init__(self, projection: nn.Module, kernel: Tensor) -> None:
            super().__init__()
            self.projection, self.kernel = projection, kernel

        def forward(self, x: Tensor, *context: Any) -> Tensor:
            return convolved(self.projection(x, *context), self.kernel)

    plain.mixer_norm = Behind(plain.mixer_norm, of["a"]["input"].weight)
    plain.feedforward_norm = Behind(plain.feedforward_norm, of["f"]["input"].weight)
    plain.mixer.rotary = ours.mixer.rotary
    for name in "qkv":
        setattr(plain.mixer, name, Behind(getattr(plain.mixer, name), of["a"][name].weight))
    gate, up = of["f"]["hidden"].weight.chunk(2)
    plain.feedforward.gate = Behind(plain.feedforward.gate, gate)
    plain.feedforward.up = Behind(plain.feedforward.up, up)
    plain.feedforward.down = Behind(plain.feedforward.down, of["f"]["output"].weight)
    context = ForwardContext.of(X)
    expected = plain(X, context)
    assert distance(ours(X, context), expected) < 1e-5
    of["a"]["k"].weight[0, 0, 0] += 1.0
    assert distance(ours(X, context), expected) > 1e-4


@torch.no_grad()
def test_kernels_of_zero_change_no_bit() -> None:
    model = randomize(build(CANON))
    without = spec.assign(CANON, ["layers[*].mixer.convolutions=null", "layers[*].feedforward.convolutions=null"])
    plain = build(without)
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    assert distance(model(TOKENS).logits, plain(TOKENS).logits) > 1e-3
    for name, tensor in model.named_parameters():
        if "convolutions" in name:
            tensor.zero_()
    assert torch.equal(model(TOKENS).logits, plain(TOKENS).logits)


def test_what_they_do_not_fit_is_refused() -> None:
    for cause, build_spec in {
        "convolutions are causal": lambda: encoder(layers=[block(mixer=ATTENTION | {"convolutions": {}})]),
        "is empty or lists a position twice": lambda: decoder(block(feedforward=GATED | {"convolutions": {"at": []}})),
        "keys_from uses the keys and values": lambda: decoder(
            block(), block(mixer=ATTENTION | {"keys_from": -1, "convolutions": {}})
        ),
        "experts read separate tokens": lambda: decoder(
            block(feedforward=experts(shared=GATED | {"convolutions": {}}))
        ),
        "there is no value projection": lambda: decoder(
            block(mixer=ATTENTION | {"keys_as_values": True, "convolutions": {}})
        ),
    }.items():
        with pytest.raises(SpecError, match=cause):
            build_spec()
