"""Parts from outside that say no cost: what their modules hold and multiply, under names of their own."""

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.residual import ResidualStream
from tests.helpers import registered


class Square(spec.Mixer):
    kind: Literal["square"] = "square"


class Cube(spec.FeedForward):
    kind: Literal["cube"] = "cube"


class Scaled(spec.Residual):
    kind: Literal["scaled"] = "scaled"
    size: int = 3


class Product(nn.Module):
    """W x, whatever the part."""

    def __init__(self, part: spec.Mixer | spec.FeedForward, place: Place) -> None:
        super().__init__()
        self.w = nn.Linear(place.d_model, place.d_model, bias=False)

    def forward(self, x: Tensor, context: ForwardContext, state: object = None) -> Tensor:
        y: Tensor = self.w(x)
        return y


class ScaledStream(ResidualStream):
    """x + s F(x), with as many factors as the residual wiring of the place says."""

    def __init__(self, residual: Scaled, place: Place) -> None:
        super().__init__(residual, place)
        assert isinstance(place.residual, Scaled)
        self.factors = nn.Parameter(torch.ones(place.residual.size))

    @staticmethod
    def enter(residual: Scaled, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def leave(residual: Scaled, stream: Tensor) -> Tensor:
        return stream

    def read(self, stream: Tensor, context: ForwardContext) -> Tensor:
        return stream

    def write(self, stream: Tensor, y: Tensor, context: ForwardContext) -> Tensor:
        return stream + self.factors.sum() * y


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    with registered.registries_as_before():
        archetype.register(Square, module=Product)
        archetype.register(Cube, module=Product)
        archetype.register(Scaled, module=ScaledStream)
        yield


def test_products_are_a_row_of_each_part_and_factors_are_counted_once_for_each_content() -> None:
    plain = archetype.load_spec("llama-tiny")
    assert isinstance(plain, spec.Decoder)
    layers = tuple(block.replace(mixer=Square(), feedforward=Cube()) for block in plain.layers)
    model = plain.replace(layers=layers, residual=Scaled())
    report = archetype.cost_report(model, batch=2, length=5)
    flops = {row.module: row.forward for row in report.rows if row.in_block and row.forward}
    products = 2 * 2 * 10 * model.d_model**2  # of two layers and ten tokens
    assert flops["blocks.0-1.mixer.products"] == flops["blocks.0-1.feedforward.products"] == products
    built, without = (
        sum(parameter.numel() for parameter in archetype.build(one).parameters())
        for one in (model, model.replace(residual=spec.ResidualSum()))
    )
    assert report.parameters["total"] == built == without + 2 * 2 * Scaled().size
