"""No part is dead: in training every parameter of every part, in every wiring, gets a gradient."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.models.build import Model, build
from tests.helpers.cases import case
from tests.helpers.combinations import GRID, hybrid
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.specs import ALL
from tests.helpers.weights import randomize

LEAST = 1e-7  # of the largest gradient of all; a router that is not trained had 2e-11


# The softmax over keys sees differences of scores only, and what all keys have in common is in none of them.
COMMON_TO_ALL_KEYS = ("mixer.k.bias", "mixer.k_global.bias", "mixer.k_norm.bias")


def unreached(drawn: spec.ModelSpec) -> set[str]:
    """The parameters without a gradient in training, nor in evaluation: a batch norm's mean takes a bias away.

    In float64: a sum that is zero but for rounding is none.
    """
    model = randomize(build(drawn).double())
    dead = {name for name in without_gradient(model.train(), drawn) if not name.endswith(COMMON_TO_ALL_KEYS)}
    return dead & set(without_gradient(model.eval(), drawn)) if dead else dead


def without_gradient(model: Model, drawn: spec.ModelSpec) -> Iterator[str]:
    """The parameters that a pass forward and backward gives no gradient."""
    torch.manual_seed(0)
    model.zero_grad()
    output = model(**{name: twice(value) for name, value in example_inputs(drawn).items()})
    answers = [logits_or_hidden(output), *([model.pooled(output.hidden)] if hasattr(model, "pooled") else [])]
    loss = sum((answer * torch.randn_like(answer)).square().mean() for answer in answers)
    (loss if output.aux_loss is None else loss + output.aux_loss).backward()
    sizes = {name: 0.0 if p.grad is None else float(p.grad.abs().max()) for name, p in model.named_parameters()}
    return (name for name, size in sizes.items() if size < LEAST * max(sizes.values()))


def twice(value: Tensor) -> Tensor:
    """Pictures in float64; tokens as they are."""
    return value.double() if value.is_floating_point() else value


@pytest.mark.shapes
def test_every_parameter_of_every_part_and_wiring_gets_a_gradient() -> None:
    for name, drawn in {**{str(param.id): param.values[0] for param in GRID}, "hybrid": hybrid()}.items():
        with case(name):
            assert unreached(drawn) == set()


@pytest.mark.shapes
def test_every_parameter_of_every_kind_of_model_gets_a_gradient() -> None:
    for name, drawn in ALL.items():
        with case(name):
            assert unreached(drawn) == set()
